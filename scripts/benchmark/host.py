"""Cases of the host's own cost: all that is not llama.cpp, on a toy model that costs it next to nothing."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from scripts.benchmark import load, texts
from scripts.benchmark.case import USAGE, Bench, Case, Side
from scripts.benchmark.report import Target
from scripts.benchmark.servers import Server

WIDTH = 32
N_WORDS = 2


class Toll(NamedTuple):
    """What requests cost: microseconds that passed, and that the server's process computed, all its threads."""

    passed: float
    computed: float


def toll(server: Server, n: int, n_tokens: int, fields: Mapping[str, Any], round_: int) -> Toll:
    """So many requests, 32 at once."""
    prompts = texts.texts(n, N_WORDS, "host", n_tokens, sorted(fields), round_)
    bodies = [server.body(prompt, n_tokens, **fields) for prompt in prompts]
    before = server.cpu_seconds()
    _, seconds = asyncio.run(load.ask_all(server, bodies, WIDTH))
    return Toll(1e6 * seconds, 1e6 * (server.cpu_seconds() - before))


def host(bench: Bench) -> Iterator[Case]:
    """A token's and a request's cost, less the bare loop's own time; `computed` is less it too."""
    assert bench.toy
    toy, sizes = bench.toy, bench.sizes
    n_tokens, n_requests = sizes.toy_tokens, sizes.toy_requests

    def asked(n: int, n_each: int, **fields: Any) -> Callable[[int], Toll]:
        return cache(lambda round_: toll(toy, n, n_each, fields, round_))

    def limit(part: str, n: int) -> Side:
        return lambda round_: 1e6 * bench.toy_limit(round_, width=WIDTH, n_words=N_WORDS, n_tokens=n_tokens)[part] / n

    def sides(asked: Callable[[int], Toll], n: int, bare: Side) -> dict[str, Side]:
        return {
            "bare loop": bare,
            "host": lambda round_: asked(round_).passed / n - bare(round_),
            "computed": lambda round_: asked(round_).computed / n - bare(round_),
        }

    bare_token, bare_request = limit("decode", WIDTH * (n_tokens - 1)), limit("read", WIDTH)
    for name, fields in (("greedy", {"temperature": 0}), ("temperature", {"temperature": 1})):
        tokens = asked(WIDTH, n_tokens, **fields, **USAGE)
        yield Case(
            f"host's own, {name}, streamed", "us/token", "host", sides(tokens, WIDTH * n_tokens, bare_token),
            {None: Target(at_most=50)},
        )  # fmt: skip
    requests = asked(n_requests, 1, temperature=0)
    yield Case("host's own, one-token requests", "us/request", "host", sides(requests, n_requests, bare_request))
    yield Case(
        "one-token requests, toy model", "requests/s", "segue",
        {"segue": lambda round_: 1e6 * n_requests / requests(round_).passed},
    )  # fmt: skip
