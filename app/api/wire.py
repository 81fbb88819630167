"""What uvicorn would refuse by itself, or take without end: bytes that are no HTTP, a request's head, connections.

Owns the form of these refusals, the one envelope; the framework never sees such requests.
"""

import asyncio
import resource
import secrets
from http import HTTPStatus
from typing import Any

import msgspec

from app.api.connection import Connection
from app.schemas import ErrorBody, ErrorResponse

MAX_CONNECTIONS = 4096
OTHER_FILES = 64
"""Files that are kept for all else: logs, the model, libraries."""
MAX_HEAD = 1 << 17
"""Bytes of a request's line and headers, give or take what arrives at once."""


class Wire(Connection):
    """A connection whose refusals are ours."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_in_head = False
        self._n_head = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            error = ErrorBody("The server has as many connections as it can take; try again later.", "server_error")
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, error, "retry-after: 1\r\n")

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._n_head += len(data)
        if self._is_in_head and self._n_head > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response(f"The request's line and headers are over the limit of {MAX_HEAD} bytes.")

    def on_message_begin(self) -> None:
        self._is_in_head, self._n_head = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's is plain text."""
        self._refuse(HTTPStatus.BAD_REQUEST, ErrorBody(msg, "invalid_request_error"))

    def _refuse(self, status: HTTPStatus, error: ErrorBody, more: str = "") -> None:
        body = msgspec.json.encode(ErrorResponse(error))
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nx-request-id: {secrets.token_hex(16)}\r\n{more}connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def most_connections() -> int:
    """As many as there may be files; a connection more would find no descriptor, and nobody would hear of it."""
    n_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(n_files - OTHER_FILES, MAX_CONNECTIONS) if n_files != resource.RLIM_INFINITY else MAX_CONNECTIONS


def allow_connections() -> None:
    """Raise the number of open files that the process may have, where the system lets it: 1,024 is a usual limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + OTHER_FILES
    if resource.RLIM_INFINITY != soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
