"""The doors that editors know: Mistral's POST /v1/fim/completions, llama.cpp's POST /infill and GET /props."""

from typing import Any

from litestar import Request, Response, get, post
from litestar.response import Stream

from app.api import sse
from app.api.bodies import decoder, off_loop
from app.api.disconnect import unless_gone
from app.api.journal import record
from app.completion import editors
from app.completion.service import CompletionService, Prepared
from app.schemas import FimCompletion, FimRequest, Infilled, InfillRequest, Props

_fim_request = decoder(FimRequest)
_infill_request = decoder(InfillRequest)


@post("/v1/fim/completions", status_code=200)
async def fim_completion(
    request: Request[Any, Any, Any], body: bytes, service: CompletionService
) -> Response[FimCompletion] | Stream:
    """Fill a gap, in Mistral's words."""
    known = record(request.scope)
    prepared = await off_loop(body, lambda body: service.prepare(editors.from_fim(_fim_request(body)), known))
    run = service.start(prepared)
    if prepared.request.stream:
        return sse.response(request, run, editors.to_fim_chunks(service.stream(prepared, run)))
    answer = await unless_gone(request, service.answer(prepared, run))
    return Response(editors.to_fim(answer), media_type="application/json")


@post("/infill", status_code=200)
async def infill(
    request: Request[Any, Any, Any], body: bytes, service: CompletionService
) -> Response[Infilled] | Stream:
    """Fill a gap, in llama.cpp's words."""

    def prepare(body: bytes) -> tuple[InfillRequest, Prepared]:
        asked = _infill_request(body)
        return asked, service.prepare(editors.from_infill(asked, service.served), record(request.scope))

    asked, prepared = await off_loop(body, prepare)
    run = service.start(prepared)
    steps = editors.to_infill_chunks(prepared, service.stream(prepared, run))
    if asked.stream:
        return sse.response(request, run, steps, end=b"")
    answer = await unless_gone(request, editors.joined_infill(steps))
    return Response(answer, media_type="application/json")


@get("/props")
async def get_props(props: Props) -> Props:
    """What llama.cpp's clients ask a server of itself."""
    return props
