"""Those who ask: requests over plain sockets, cheaper than any client, and the same for every server.

Owns the bytes of a request and of its answer: when the first came, and how many tokens they are.
"""

import asyncio
import json
import re
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from scripts.benchmark.servers import Server, Unusable

LIMIT = 1 << 24
Body = dict[str, Any]


class Answer(NamedTuple):
    """first: seconds to the first byte of the body, in a stream its first token; seconds: to the last."""

    n_prompt: int
    n_tokens: int
    first: float
    seconds: float


class Begun(NamedTuple):
    """An answer whose body has begun."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    start: bytes


async def send(server: Server, path: str, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request over a connection of its own."""
    reader, writer = await asyncio.open_connection(server.host, server.port, limit=LIMIT)
    head = f"POST {path} HTTP/1.1\r\nhost: {server.host}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}connection: close\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
    return reader, writer


async def begin(server: Server, body: Body) -> Begun:
    """Send a request, and wait for the first byte of the answer's body. Raises Unusable where it is not a 200."""
    reader, writer = await send(server, "/v1/completions", json.dumps(body).encode())
    status = await reader.readline()
    if b" 200 " not in status:
        raise Unusable(f"{server.name} answered {status!r}: {(await reader.read())[-500:]!r}")
    await reader.readuntil(b"\r\n\r\n")
    return Begun(reader, writer, await reader.read(1))


async def ask(server: Server, body: Body) -> Answer:
    """One request, to its end. Raises Unusable."""
    start = time.perf_counter()
    reader, writer, data = await begin(server, body)
    first = time.perf_counter() - start
    data += await reader.read()
    writer.close()
    n_prompt, n_tokens = counts(data, bool(body.get("stream")))
    if not n_tokens:
        raise Unusable(f"{server.name} gave an answer without an end: {data[-300:]!r}")
    return Answer(n_prompt, n_tokens, first, time.perf_counter() - start)


def counts(data: bytes, streamed: bool) -> tuple[int, int]:
    """Tokens of prompt and completion by an answer's last usage; a stream without one has a token an event but the
    last. No tokens where the answer is not whole."""
    if streamed and b"data: [DONE]" not in data:
        return 0, 0
    n_prompt, n_tokens = (re.findall(rb'"%b_tokens":\s*(\d+)' % kind, data) for kind in (b"prompt", b"completion"))
    if n_tokens:
        return int((n_prompt or [b"0"])[-1]), int(n_tokens[-1])
    return 0, max(data.count(b"data: {") - 1, 0) if streamed else 0


async def ask_all(server: Server, bodies: Sequence[Body], width: int) -> tuple[list[Answer], float]:
    """Each request once, in order, `width` at a time; the answers as they came, and the seconds from first to last."""
    waiting, answers = iter(bodies), list[Answer]()

    async def client() -> None:
        for body in waiting:
            answers.append(await ask(server, body))

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(width)))
    return answers, time.perf_counter() - start


async def first_under_load(server: Server, busy: Sequence[Body], probes: Sequence[Body]) -> float:
    """Median seconds to the first token of each probe, asked one after another while the busy ones stream."""
    streams = await asyncio.gather(*(begin(server, body) for body in busy))
    drains = [asyncio.create_task(stream.reader.read()) for stream in streams]
    firsts = [(await ask(server, body)).first for body in probes]
    if any(drain.done() for drain in drains):
        raise Unusable(f"{server.name} had ended its load before the last probe")
    for stream in streams:
        stream.writer.close()
    await asyncio.gather(*drains, return_exceptions=True)
    return statistics.median(firsts)
