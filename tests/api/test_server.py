"""The end of a server, with a client that does not read: no traceback, no waiting for it."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from app.api import server, sse
from app.schemas import Health
from tests.servers import Json, payloads_of

PIECE = bytes(64 << 20)
"""More than the system's own buffers hold."""


class Endless:
    """An ASGI application that sends more than a client takes that does not read."""

    def __init__(self) -> None:
        self.has_filled = asyncio.Event()
        self.has_ended = False

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Callable[[Json], Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": PIECE, "more_body": True})
        self.has_filled.set()
        await send({"type": "http.response.body", "body": PIECE, "more_body": True})
        self.has_ended = True
        await send({"type": "http.response.body", "body": b"", "more_body": False})


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
        serving = asyncio.ensure_future(running.serve([listener]))
        client.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        await app.has_filled.wait()
        running.should_exit = True
        async with asyncio.timeout(30):
            await serving
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
