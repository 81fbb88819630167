"""Server-sent events: chunks as bytes, each event whole, and the error that comes too late for a status."""

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
from litestar import Request
from litestar.response import Stream

from app.api.errors import describe
from app.api.request_id import request_id
from app.completion.search import Search
from app.engine.engine import Run
from app.errors import SegueError
from app.schemas import ErrorResponse

logger = logging.getLogger("segue.api")

MEDIA_TYPE = "text/event-stream"
"""Litestar adds the charset."""
DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


def response(
    request: Request[Any, Any, Any],
    run: Run | Search,
    steps: AsyncIterator[Sequence[msgspec.Struct]],
    end: bytes = DONE,
) -> Stream:
    """A stream of what a run brings, which ends with `end`. A client that leaves cancels the run."""
    stream = events(steps, request_id(request.scope), end)
    # A stream whose client left before its first event is never begun, and so never ended by itself.
    weakref.finalize(stream, run.cancel)
    return Stream(stream, media_type=MEDIA_TYPE, headers={"cache-control": "no-cache"})


def event(data: msgspec.Struct) -> bytes:
    """One event."""
    return b"data: %b\n\n" % _encoder.encode(data)


async def events(steps: AsyncIterator[Sequence[msgspec.Struct]], request: str, end: bytes) -> AsyncIterator[bytes]:
    """The bytes of a stream, one piece a step. A fault becomes an event of its own, which is then the last."""
    try:
        async for chunks in steps:
            yield b"".join(map(event, chunks))
            # A backlog that nobody reads any more would else be written in one go, while all others wait.
            await asyncio.sleep(0)
        if end:
            yield end
    except Exception as error:
        if not isinstance(error, SegueError):
            logger.exception("stream of request %s failed", request)
        yield event(ErrorResponse(describe(error, request)[1]))
