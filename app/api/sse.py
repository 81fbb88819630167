"""Server-sent events: chunks as bytes, each event whole, and the error that comes too late for a status."""

import logging
from collections.abc import AsyncIterator

import msgspec

from app.api.errors import describe
from app.errors import SegueError
from app.schemas import Completion, ErrorResponse

logger = logging.getLogger("segue.api")

MEDIA_TYPE = "text/event-stream"
"""Litestar adds the charset."""
DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


def event(data: Completion | ErrorResponse) -> bytes:
    """One event."""
    return b"data: %b\n\n" % _encoder.encode(data)


async def events(steps: AsyncIterator[list[Completion]], request: str) -> AsyncIterator[bytes]:
    """The bytes of a stream, one piece a step. A fault becomes an event of its own, which is then the last."""
    try:
        async for chunks in steps:
            yield b"".join(map(event, chunks))
        yield DONE
    except Exception as error:
        if not isinstance(error, SegueError):
            logger.exception("stream of request %s failed", request)
        yield event(ErrorResponse(describe(error, request)[1]))
