"""uvicorn's side of a connection, where it would answer by itself, or wait for ever.

What is no HTTP is refused in the one envelope; a request's head has a longest length, and its next byte a latest time.
"""

import asyncio
import secrets
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.schemas import ErrorBody, ErrorResponse

MAX_HEAD = 1 << 17
"""Bytes of a request's line and headers, give or take what arrives at once."""
STALL_SECONDS = 60.0
"""What a client has for the next byte of a request that it has begun."""


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_in_head = False
        self._n_head = 0
        self._stall: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._n_head += len(data)
        if self._is_in_head and self._n_head > MAX_HEAD and not self.transport.is_closing():
            self.send_400_response(f"The request's line and headers are over the limit of {MAX_HEAD} bytes.")
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._is_in_head, self._n_head = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's is plain text."""
        body = msgspec.json.encode(ErrorResponse(ErrorBody(msg, "invalid_request_error")))
        head = (
            f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"x-request-id: {secrets.token_hex(16)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _watch(self) -> None:
        """Begin to wait for the rest of a request, where it is not whole."""
        self._unwatch()
        if not self.transport.is_closing() and (self._is_in_head or (self.cycle and self.cycle.more_body)):
            self._stall = self.loop.call_later(STALL_SECONDS, self._stalled)

    def _unwatch(self) -> None:
        if self._stall:
            self._stall.cancel()

    def _stalled(self) -> None:
        if self.flow.read_paused:  # it is we who do not read
            self._watch()
        else:
            self.transport.abort()
