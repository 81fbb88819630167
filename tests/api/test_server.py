"""Clients that stall, while a server runs and at its end: no traceback, no waiting for them."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.api import connection, server, sse
from app.schemas import Health
from tests.servers import Json, payloads_of

PIECE = bytes(64 << 20)
"""More than the system's own buffers hold."""


class Endless:
    """An ASGI application that sends more than a client takes that does not read."""

    def __init__(self) -> None:
        self.has_filled = asyncio.Event()
        self.was_left = asyncio.Event()
        self.has_ended = False

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Callable[[Json], Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": PIECE, "more_body": True})
        self.has_filled.set()
        await send({"type": "http.response.body", "body": PIECE, "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        self.was_left.set()
        self.has_ended = True
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[tuple[str, int]]:
    """A server's address, while it runs."""

    async def stop() -> None: ...

    running = server.server_of(app, server.End(lambda: None, stop, 0.1))
    running.config.lifespan = "off"
    with server.bind("127.0.0.1", 0) as listener:
        task = asyncio.ensure_future(running.serve([listener]))
        yield listener.getsockname()
        running.should_exit = True
        async with asyncio.timeout(30):
            await task


async def test_a_client_that_does_not_read_is_cut_off_after_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "STALLED_SECONDS", 0.2)
    app = Endless()
    async with serving(app) as address:
        with socket.create_connection(address) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            async with asyncio.timeout(30):
                await app.was_left.wait()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("begun", [b"", b"POST / HT", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhalf"])
async def test_a_request_that_does_not_arrive_is_not_waited_for(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ARRIVAL_SECONDS", 0.2)
    async with serving(Endless()) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(begun)
        async with asyncio.timeout(30):
            assert await ended(reader)
        writer.close()


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.TimerHandle]:
    """Every clock that is set for a client."""
    clocks: list[asyncio.TimerHandle] = []
    start = connection.Connection._clock

    def noted(self: connection.Connection, seconds: float) -> asyncio.TimerHandle:
        clocks.append(start(self, seconds))
        return clocks[-1]

    monkeypatch.setattr(connection.Connection, "_clock", noted)
    return clocks


async def test_a_request_that_has_arrived_and_a_client_that_reads_again_have_no_clock(
    clocks: list[asyncio.TimerHandle],
) -> None:
    async with serving(Endless()) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.0\r\nhost: a\r\n\r\n")
        async with asyncio.timeout(30):
            assert await reader.readuntil(b"\r\n\r\n")
            assert len(clocks) == 3, "two for the request, and one since so much is not taken at once"
            await reader.readexactly(2 * len(PIECE))
            assert [clock.cancelled() for clock in clocks] == [True] * 4
        writer.close()


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the connection ends, in whatever way."""
    try:
        while await reader.read(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


async def test_a_client_that_does_not_read_is_cut_off_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "FLUSH_SECONDS", 0.2)
    steps: list[str] = []

    async def stop() -> None:
        steps.append("stop")

    app: Any = Endless()
    end = server.End(lambda: steps.append("begin"), stop, 0.1)
    running = server.server_of(app, end)
    running.config.timeout_graceful_shutdown = 60
    running.config.lifespan = "off"
    with server.bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()) as client:
        task = asyncio.ensure_future(running.serve([listener]))
        client.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await app.has_filled.wait()
        running.should_exit = True
        async with asyncio.timeout(30):
            await task
    assert steps == ["begin", "stop"]
    assert app.has_ended
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_backlog_lets_others_run() -> None:
    """Its steps are all there at once: whoever else is ready must get a turn before they are written."""
    n_turns = 0

    async def backlog() -> AsyncIterator[list[Health]]:
        for _ in range(100):
            yield [Health("ok")]

    async def other() -> None:
        nonlocal n_turns
        while True:
            n_turns += 1
            await asyncio.sleep(0)

    running = asyncio.ensure_future(other())
    written = [piece async for piece in sse.events(backlog(), "a request", sse.DONE)]
    running.cancel()
    assert payloads_of(b"".join(written))[-1] == "[DONE]"
    assert n_turns >= 100
