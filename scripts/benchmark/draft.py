"""What guessing from the prompt brings where a text repeats itself, and costs where it does not."""

import asyncio
from collections.abc import Iterator

from scripts.benchmark import load, texts
from scripts.benchmark.case import USAGE, Bench, Case, Side
from scripts.benchmark.servers import Server


def draft(bench: Bench) -> Iterator[Case]:
    """One greedy stream, and eight, by a server with `--draft prompt`, against the same without."""
    assert bench.drafting
    for what in ("repeats", "goes on"):
        for width in (1, 8):
            sides = {"without": asked(bench, bench.segue, what, width)}
            sides["--draft prompt"] = asked(bench, bench.drafting, what, width)
            yield Case(f"{width} at once, text {what}", "tokens/s", "--draft prompt", sides)


def asked(bench: Bench, server: Server, what: str, width: int) -> Side:
    sizes = bench.sizes

    def measure(round_: int) -> float:
        keys = [(what, width, round_, i) for i in range(width)]
        prompts = [repeating(sizes.words, *key) if what == "repeats" else texts.text(sizes.words, *key) for key in keys]
        bodies = [server.body(each, sizes.tokens, temperature=0, **USAGE) for each in prompts]
        answers, seconds = asyncio.run(load.ask_all(server, bodies, width))
        return sum(answer.n_tokens for answer in answers) / seconds

    return measure


def repeating(n_words: int, *key: object) -> str:
    """A text that asks for a part of itself once more, as an edit or an extraction does."""
    first, second = texts.text(12, *key, "first"), texts.text(n_words, *key, "second")
    return f"Words: {first}\nThe same words: {first}\n\nWords: {second}\nThe same words:"
