"""POST /v1/completions."""

from typing import Any

from litestar import Request, Response, post
from litestar.response import Stream

from app.api import sse
from app.api.bodies import completion_request, off_loop
from app.api.disconnect import unless_gone
from app.api.journal import record
from app.api.leases import Leasing
from app.schemas import Completion
from app.settings import Settings


@post("/v1/completions", status_code=200)
async def create_completion(
    request: Request[Any, Any, Any], body: bytes, leasing: Leasing, settings: Settings
) -> Response[Completion] | Stream:
    """Continue a text, plainly or as a stream. Everything that can be refused is refused before the answer begins."""
    asked = await off_loop(body, lambda body: completion_request(body, strict=settings.strict))
    service = (await leasing.asked(request, asked)).service
    prepared = await off_loop(body, lambda _: service.prepare(asked, record(request.scope)))
    run = service.start(prepared)
    if asked.stream:
        return sse.response(request, run, service.stream(prepared, run))
    answer = await unless_gone(request, service.answer(prepared, run))
    return Response(answer, media_type="application/json")
