"""Cases of prompts that are read, not continued: long ones, and texts and options that are scored."""

import asyncio
from collections.abc import Iterator
from typing import Any

from scripts.benchmark import load, texts
from scripts.benchmark.case import USAGE, Bench, Case, Side
from scripts.benchmark.report import Target
from scripts.benchmark.servers import Server

SCORED: dict[str, Any] = {"echo": True, "logprobs": 1, "temperature": 0}


def prompt(bench: Bench) -> Iterator[Case]:
    """First token of a long prompt, cold and cached."""
    n_words = bench.sizes.long_words

    def limit(round_: int) -> float:
        return bench.limit("prompt", round_, n_words=n_words)["read"]

    def asked(server: Server) -> Side:
        def measure(round_: int) -> float:
            text = texts.text(n_words, "prompt", round_)
            return asyncio.run(load.ask(server, server.body(text, 1, cached=True, temperature=0, **USAGE))).first

        return measure

    for server in bench.servers("prompt"):
        first, again = asked(server), asked(server)
        yield Case(
            f"{n_words}-word prompt again, {server.name}", "s to 1st token", "again",
            {"limit": limit, "first time": first, "again": again}, {"first time": Target(at_most=0.05)},
        )  # fmt: skip


def score(bench: Bench) -> Iterator[Case]:
    """Texts with the log probability of every token. limit: in segue's pieces; one piece: a text a decode."""
    sizes = bench.sizes
    n, n_words = sizes.n_texts, sizes.text_words

    def limit(n_rows: int) -> Side:
        def measure(round_: int) -> float:
            return n * n_words / bench.limit("score", round_, n_texts=n, n_words=n_words, n_rows=n_rows)["read"]

        return measure

    def asked(server: Server) -> Side:
        def measure(round_: int) -> float:
            bodies = [server.body(text, 1, **SCORED) for text in texts.texts(n, n_words, "score", round_)]
            return n * n_words / asyncio.run(load.ask_all(server, bodies, n))[1]

        return measure

    sides = {"limit": limit(0), "one piece": limit(n_words)}
    sides |= {server.name: asked(server) for server in bench.servers("score")}
    yield Case(f"scoring {n_words}-word texts", "words/s", bench.segue.name, sides, {"limit": Target(0.75)})


def questions(bench: Bench) -> Iterator[Case]:
    """Multiple choice, an option a request, 8 at once; without the cache one question a round, since it takes long."""
    sizes = bench.sizes

    def limit(round_: int) -> float:
        spent = bench.limit("quiz", round_, n_questions=sizes.n_questions, n_shared=sizes.shared_words)
        return sizes.n_questions / spent["read"]

    def asked(server: Server, n: int) -> Side:
        def measure(round_: int) -> float:
            prompts = texts.quiz(n, sizes.shared_words, "quiz", n, round_).prompts()
            bodies = [server.body(each, 1, cached=True, **SCORED) for each in prompts]
            return n / asyncio.run(load.ask_all(server, bodies, 8))[1]

        return measure

    assert bench.uncached
    sides = {"limit": limit, "cache off": asked(bench.uncached, 1)}
    sides |= {server.name: asked(server, sizes.n_questions) for server in bench.servers("questions")}
    yield Case(
        f"{sizes.n_questions} questions", "questions/s", bench.segue.name, sides, {"cache off": Target(15)}
    )  # fmt: skip
