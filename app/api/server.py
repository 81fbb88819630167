"""uvicorn, as segue runs it: the socket bound before the model loads, signals that end it with success."""

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvicorn
from litestar.types import ASGIApp

from app.errors import StartError

KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep idle connections, or they meet one that is just being closed."""
BACKLOG = 2048
GRACE_SECONDS = 10
"""What running requests have to finish after a signal."""


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, stop: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._stop = stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's; but what still runs after its grace is told so, by `stop`, before it would be cut off."""
        ending = asyncio.ensure_future(super().shutdown(sockets))
        await asyncio.wait([ending], timeout=GRACE_SECONDS)
        if not ending.done():
            await self._stop()
        await ending

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM. uvicorn would raise them again at the end, and so die of them."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def bind(host: str, port: int) -> socket.socket:
    """A socket that no other server has. Raises StartError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # It listens at once: until then, Linux would let another server have the same port.
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise StartError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port or --host."
        ) from None
    return listener


def url(listener: socket.socket) -> str:
    """The address of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app: ASGIApp, listener: socket.socket, stop: Callable[[], Awaitable[None]]) -> None:
    """Serve until a signal comes. `stop` ends the requests that still run when their grace is over."""
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=2 * GRACE_SECONDS,
    )
    _Server(config, stop).run(sockets=[listener])
