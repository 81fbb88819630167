"""uvicorn, as segue runs it: the socket bound before the model loads, signals that end it with success."""

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from types import FrameType

import uvicorn
from litestar.types import ASGIApp

from app.api.wire import Wire, allow_connections
from app.errors import StartError

KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep idle connections, or they meet one that is just being closed."""
BACKLOG = 2048
FLUSH_SECONDS = 2
"""What clients have to read their last bytes, when all is over; then they are cut off."""


@dataclass(frozen=True, slots=True)
class End:
    """How a server ends. begin: lets no more requests in. stop: ends those that still run after `seconds`."""

    begin: Callable[[], None]
    stop: Callable[[], Awaitable[None]]
    seconds: float


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, end: End) -> None:
        super().__init__(config)
        self._end = end

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal ends the server in order, the second at once."""
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let what runs finish, in its time, while who comes is refused; then close as uvicorn does."""
        self._end.begin()
        if not await _are_done(self.server_state.tasks, self._end.seconds):
            await self._end.stop()
        closing = asyncio.ensure_future(super().shutdown(sockets))
        if not await _are_done({closing}, FLUSH_SECONDS):
            self._cut_off()
        await closing

    def _cut_off(self) -> None:
        """Drop clients that do not read: uvicorn would wait for them, and then cancel with a traceback."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM. uvicorn would raise them again at the end, and so die of them."""
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


async def _are_done(tasks: Collection[asyncio.Future[None]], seconds: float) -> bool:
    """Wait for the tasks that there are now; whether all ended in time."""
    return not tasks or not (await asyncio.wait(list(tasks), timeout=seconds))[1]


def bind(host: str, port: int) -> socket.socket:
    """A socket that no other server has; "" is every address. Raises StartError."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        # It listens at once: until then, Linux would let another server have the same port.
        listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        reason = str(error.strerror).partition(" (while ")[0]  # the address is said once
        raise StartError(f"cannot listen on {host}:{port}: {reason}; choose another --port or --host.") from None
    except UnicodeError:
        raise StartError(f"cannot listen on {host}:{port}: no host is called so; choose another --host.") from None
    return listener


def url(listener: socket.socket) -> str:
    """The address of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_local(listener: socket.socket) -> bool:
    """Whether only this machine reaches a bound socket."""
    return ip_address(listener.getsockname()[0]).is_loopback


def run(app: ASGIApp, listener: socket.socket, end: End) -> None:
    """Serve until a signal comes."""
    allow_connections()
    server_of(app, end).run(sockets=[listener])


def server_of(app: ASGIApp, end: End) -> uvicorn.Server:
    """uvicorn, set up; it ends by a signal or `should_exit`."""
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=Wire,
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=2 * FLUSH_SECONDS,  # who is cut off is gone before; this is for what cannot be
    )
    return _Server(config, end)
