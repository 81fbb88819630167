"""The doors that editors know: Mistral's POST /v1/fim/completions, llama.cpp's POST /infill and GET /props."""

from typing import Any

from litestar import Request, Response, get, post
from litestar.response import Stream

from app.api import sse
from app.api.bodies import decoder, off_loop
from app.api.disconnect import unless_gone
from app.api.journal import record
from app.api.leases import Leasing
from app.completion import editors
from app.schemas import FimCompletion, FimRequest, Infilled, InfillRequest, Props

_fim_request = decoder(FimRequest)
_infill_request = decoder(InfillRequest)


@post("/v1/fim/completions", status_code=200)
async def fim_completion(
    request: Request[Any, Any, Any], body: bytes, leasing: Leasing
) -> Response[FimCompletion] | Stream:
    """Fill a gap, in Mistral's words."""
    asked = await off_loop(body, lambda body: editors.from_fim(_fim_request(body)))
    service = (await leasing.asked(request, asked)).service
    prepared = await off_loop(body, lambda _: service.prepare(asked, record(request.scope)))
    run = service.start(prepared)
    if prepared.request.stream:
        return sse.response(request, run, editors.to_fim_chunks(service.stream(prepared, run)))
    answer = await unless_gone(request, service.answer(prepared, run))
    return Response(editors.to_fim(answer), media_type="application/json")


@post("/infill", status_code=200)
async def infill(request: Request[Any, Any, Any], body: bytes, leasing: Leasing) -> Response[Infilled] | Stream:
    """Fill a gap, in llama.cpp's words."""
    asked = await off_loop(body, _infill_request)
    service = (await leasing.of(request, asked.model)).service
    wanted = editors.from_infill(asked, service.served)
    prepared = await off_loop(body, lambda _: service.prepare(wanted, record(request.scope)))
    run = service.start(prepared)
    steps = editors.to_infill_chunks(prepared, service.stream(prepared, run))
    if asked.stream:
        return sse.response(request, run, steps, end=b"")
    answer = await unless_gone(request, editors.joined_infill(steps))
    return Response(answer, media_type="application/json")


@get("/props")
async def get_props(request: Request[Any, Any, Any], leasing: Leasing) -> Props:
    """What llama.cpp's clients ask a server of itself; ?model= names one of several."""
    return (await leasing.of(request, request.query_params.get("model"))).props
