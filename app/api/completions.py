"""POST /v1/completions."""

import asyncio
import weakref
from typing import Any

from litestar import Request, Response, post
from litestar.response import Stream

from app.api import sse
from app.api.bodies import completion_request
from app.api.disconnect import unless_gone
from app.api.request_id import request_id
from app.completion.service import CompletionService, Prepared
from app.schemas import Completion
from app.settings import Settings

INLINE_BODY = 1 << 14
"""Larger bodies are decoded and tokenised in a thread: a long text takes longer than a step may wait."""


@post("/v1/completions", status_code=200)
async def create_completion(
    request: Request[Any, Any, Any], body: bytes, service: CompletionService, settings: Settings
) -> Response[Completion] | Stream:
    """Continue a text, plainly or as a stream. Everything that can be refused is refused before the answer begins."""

    def prepare() -> Prepared:
        return service.prepare(completion_request(body, strict=settings.strict))

    prepared = prepare() if len(body) < INLINE_BODY else await asyncio.to_thread(prepare)
    run = service.start(prepared)
    if prepared.request.stream:
        stream = sse.events(service.stream(prepared, run), request_id(request.scope))
        # A stream whose client left before its first event is never begun, and so never ended by itself.
        weakref.finalize(stream, run.cancel)
        return Stream(stream, media_type=sse.MEDIA_TYPE, headers={"cache-control": "no-cache"})
    answer = await unless_gone(request, service.answer(prepared, run))
    return Response(answer, media_type="application/json")
