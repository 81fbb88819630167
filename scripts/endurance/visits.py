"""Those who ask: a connection for each request, left in its middle where the client hangs up.

Owns telling a whole answer from a broken one.
"""

import asyncio
import json
import time
from enum import StrEnum, auto
from typing import Any, NamedTuple

from scripts.benchmark import load
from scripts.benchmark.servers import Server
from scripts.endurance.wishes import Wish

PATIENCE = 120.0
"""Seconds after which an answer that is not whole has failed."""


class Outcome(StrEnum):
    """How a request ended. TOLD_OFF: by a 429 that says when to come again."""

    DONE = auto()
    REFUSED = auto()
    TOLD_OFF = auto()
    LEFT = auto()
    FAILED = auto()


class Visit(NamedTuple):
    """first, end: when the answer's body began and ended, by `time.perf_counter`; seconds: from the start to `first`.

    problem: what was wrong with an answer that failed.
    """

    wish: Wish
    outcome: Outcome
    body: bytes = b""
    seconds: float = 0.0
    end: float = 0.0
    problem: str = ""


async def visit(server: Server, wish: Wish) -> Visit:
    """Ask, and wait for the end of the answer, or hang up."""
    try:
        async with asyncio.timeout(PATIENCE if wish.leaves is None else wish.leaves):
            return await _visit(server, wish)
    except TimeoutError:
        if wish.leaves is not None:
            return Visit(wish, Outcome.LEFT)
        return Visit(wish, Outcome.FAILED, problem=f"no whole answer in {PATIENCE:g} s")
    except (OSError, EOFError, ValueError) as error:
        return Visit(wish, Outcome.FAILED, problem=repr(error))


async def _visit(server: Server, wish: Wish) -> Visit:
    start = time.perf_counter()
    reader, writer = await load.send(server, wish.path, wish.body)
    try:
        answered = await reader.readuntil(b"\r\n\r\n")
        body = await reader.read(1)
        seconds = time.perf_counter() - start
        body += await reader.read()
    finally:
        writer.transport.abort()  # whoever hangs up does not take leave
    if b"\r\ntransfer-encoding: chunked" in answered.lower():
        body = unchunked(body)
    outcome, problem = judged(wish, answered, body)
    return Visit(wish, outcome, body, seconds, time.perf_counter(), problem)


def unchunked(data: bytes) -> bytes:
    """A body without its framing. Raises ValueError where it is cut off."""
    pieces: list[bytes] = []
    while True:
        length, _, data = data.partition(b"\r\n")
        n = int(length, 16)
        if not n:
            return b"".join(pieces)
        pieces.append(data[:n])
        data = data[n + 2 :]


def judged(wish: Wish, head: bytes, body: bytes) -> tuple[Outcome, str]:
    """The outcome of an answer, and what is wrong with it. Raises ValueError where it is cut off."""
    status = int(head.split(b" ", 2)[1])
    if status == 429 and b"\r\nretry-after: " in head.lower():
        return Outcome.TOLD_OFF, ""
    if status != wish.status:
        return Outcome.FAILED, f"{status} where {wish.status} is right: {body[:300]!r}"
    if status != 200:
        return (Outcome.REFUSED, "") if set(json.loads(body)) == {"error"} else (Outcome.FAILED, repr(body[:300]))
    if (n_ends := _ends(wish, body)) != wish.n_choices:
        return Outcome.FAILED, f"{n_ends} choices of {wish.n_choices} have an end: {body[-120:]!r}"
    return Outcome.DONE, ""


def _ends(wish: Wish, body: bytes) -> int:
    """Choices that have an end. Raises ValueError where the answer is cut off."""
    return sum(choice["finish_reason"] is not None for answer in answers(wish, body) for choice in answer["choices"])


def answers(wish: Wish, body: bytes) -> list[Any]:
    """The completions in an answer: its chunks, if it is a stream. Raises ValueError where it is cut off."""
    if not wish.n_choices:
        return []
    if not wish.streams:
        return [json.loads(body)]
    *events, done, rest = body.split(b"\n\n")
    if (done, rest) != (b"data: [DONE]", b""):
        raise ValueError(f"a stream without its end: {body[-120:]!r}")
    return [json.loads(event.removeprefix(b"data: ")) for event in events]


def said(visit: Visit) -> list[str]:
    """The text of each choice."""
    texts = [""] * visit.wish.n_choices
    for answer in answers(visit.wish, visit.body):
        for choice in answer["choices"]:
            texts[choice["index"]] += choice["text"]
    return texts
