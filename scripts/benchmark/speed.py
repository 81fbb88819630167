"""Cases of generation: tokens a second by width and sampling, candidates, and the wait of one more."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from scripts.benchmark import load, texts
from scripts.benchmark.case import USAGE, Bench, Case, Side, Sizes
from scripts.benchmark.report import Target
from scripts.benchmark.servers import Server

GREEDY: dict[str, Any] = {"temperature": 0}


class Way(NamedTuple):
    """A way of asking for tokens."""

    name: str
    title: str
    streamed: bool
    fields: Mapping[str, Any]


WAYS = (
    Way("greedy", "greedy", False, GREEDY),
    Way("greedy", "greedy", True, GREEDY),
    Way("temperature", "temperature 1", True, {"temperature": 1}),
    Way("top_p", "top_p 0.95", True, {"top_p": 0.95}),
    Way("logprobs", "logprobs 5", True, {"logprobs": 5}),
)
SPEED_TARGETS: dict[tuple[int, str], dict[str | None, Target]] = {
    (1, "greedy"): {"limit": Target(0.95), "llama-server": Target(1.0)},
    (8, "greedy"): {"llama_cpp": Target(6.0)},
    (16, "greedy"): {"limit": Target(0.9), "llama-server": Target(1.0)},
    (16, "temperature"): {"limit": Target(0.88), "llama-server": Target(1.5)},
    (16, "logprobs"): {"limit": Target(0.85), "llama-server": Target(1.8)},
}


def speed(bench: Bench, way: Way, width: int) -> Case:
    """Tokens a second. limit: the bare loop with its prefill; decode only, told once a width: without; as filed, where
    there is a target: with weights that segue recodes in the file's formats.
    """
    sizes, title = bench.sizes, f"{width} at once, {way.title}, {'streamed' if way.streamed else 'plain'}"

    def asked(server: Server) -> Side:
        return lambda round_: tokens_per_second(server, way, width, sizes, round_)

    def of_bare(*parts: str, as_filed: bool = False) -> Side:
        def measure(round_: int) -> float:
            spent = bench.limit(
                "decode", round_, title, as_filed, width=width, n_words=sizes.words, n_tokens=sizes.tokens
            )
            n_tokens = width * (sizes.tokens if "read" in parts else sizes.tokens - 1)
            return n_tokens / sum(spent[part] for part in parts)

        return measure

    sides = {"limit": of_bare("read", "decode")}
    sides |= {server.name: asked(server) for server in bench.servers(way.name, width)}
    if way is WAYS[0]:
        sides["decode only"] = of_bare("decode")
    targets = SPEED_TARGETS.get((width, way.name), {})
    if "limit" in targets:
        sides["as filed"] = of_bare("read", "decode", as_filed=True)
    return Case(title, "tokens/s", bench.segue.name, sides, targets)


def tokens_per_second(server: Server, way: Way, width: int, sizes: Sizes, round_: int) -> float:
    prompts = texts.texts(width, sizes.words, way.name, way.streamed, width, round_)
    fields = {**way.fields, **(USAGE if way.streamed else {})}
    bodies = [server.body(prompt, sizes.tokens, **fields) for prompt in prompts]
    answers, seconds = asyncio.run(load.ask_all(server, bodies, width))
    return sum(answer.n_tokens for answer in answers) / seconds


def best_of(bench: Bench) -> Iterator[Case]:
    """Eight candidates of one prompt, against eight times one."""
    sizes, n = bench.sizes, 8

    def limit(round_: int) -> float:
        spent = bench.limit("decode", round_, width=n, n_words=sizes.words, n_tokens=sizes.tokens)
        return spent["read"] / n + spent["decode"]

    def asked(server: Server, n: int, times: int = 1) -> Side:
        def measure(round_: int) -> float:
            text = texts.text(sizes.words, "best_of", n, round_)
            body = server.body(text, sizes.tokens, best_of=n)
            return times * asyncio.run(load.ask(server, body)).seconds

        return measure

    for server in bench.servers("best_of"):
        sides = {"limit": limit, "8 x one": asked(server, 1, times=8), server.name: asked(server, n)}
        yield Case(f"best_of {n}, {server.name}", "s", server.name, sides, {"8 x one": Target(at_most=0.35)})


def waiting(bench: Bench) -> Iterator[Case]:
    """First token of a request that comes while 16 stream. limit: a decode of the 16 with the prompt beside them."""
    sizes, width, n_probes = bench.sizes, 16, 4

    def limit(round_: int) -> float:
        spent = bench.limit("decode", round_, width=width, n_words=sizes.words, n_tokens=sizes.tokens)
        return spent["step with a prompt"]

    def asked(server: Server) -> Side:
        def measure(round_: int) -> float:
            prompts = texts.texts(width + n_probes, sizes.words, "waiting", round_)
            # Long enough to outlast the probes; they are cut off then.
            bodies = [server.body(each, 512, **GREEDY, **USAGE) for each in prompts[:width]]
            probes = [server.body(each, 1, **GREEDY, **USAGE) for each in prompts[width:]]
            return asyncio.run(load.first_under_load(server, bodies, probes))

        return measure

    sides = {"limit": limit} | {server.name: asked(server) for server in bench.servers("waiting", width + 1)}
    yield Case(f"one more beside {width} streams", "s to 1st token", bench.segue.name, sides)
