"""uvicorn, as segue runs it: the socket bound before the model loads, signals that end it with success."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from litestar.types import ASGIApp

from app.errors import StartError

KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep idle connections, or they meet one that is just being closed."""
GRACE_SECONDS = 10
"""What running requests have to finish after a signal."""


class _Server(uvicorn.Server):
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
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise StartError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port or --host."
        ) from None
    return listener


def url(listener: socket.socket) -> str:
    """The address of a bound socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app: ASGIApp, listener: socket.socket) -> None:
    """Serve until a signal comes."""
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    _Server(config).run(sockets=[listener])
