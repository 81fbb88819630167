"""What uvicorn would refuse by itself, or read without end: bytes that are no HTTP, and a request's head.

Owns the form of these refusals, the one envelope; the framework never sees such requests.
"""

import secrets
from typing import Any

import msgspec

from app.api.connection import Connection
from app.schemas import ErrorBody, ErrorResponse

MAX_HEAD = 1 << 17
"""Bytes of a request's line and headers, give or take what arrives at once."""


class Wire(Connection):
    """A connection whose refusals are ours."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_in_head = False
        self._n_head = 0

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
        body = msgspec.json.encode(ErrorResponse(ErrorBody(msg, "invalid_request_error")))
        head = (
            f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"x-request-id: {secrets.token_hex(16)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
