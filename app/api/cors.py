"""Preflights from origins that may not call: Litestar answers them in plain text, and every error has one envelope."""

import msgspec
from litestar.config.cors import CORSConfig
from litestar.enums import ScopeType
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Receive, Scope, Send

from app.schemas import ErrorBody, ErrorResponse


class ForeignPreflight:
    """ASGI around ASGI: refuses those, and passes on everything else."""

    def __init__(self, app: ASGIApp, config: CORSConfig) -> None:
        self._app = app
        self._config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP or scope["method"] != "OPTIONS":
            await self._app(scope, receive, send)
            return
        origin = dict(scope["headers"]).get(b"origin", b"").decode("latin-1")
        if not origin or self._config.is_origin_allowed(origin):
            await self._app(scope, receive, send)
            return
        message = f"Pages of {origin[:200]} may not call; --cors-origin names those that may."
        body = msgspec.json.encode(ErrorResponse(ErrorBody(message, "invalid_request_error")))
        await ASGIResponse(body=body, status_code=403, media_type="application/json")(scope, receive, send)
