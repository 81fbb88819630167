"""`x-request-id`: taken from the request or made, and put on every response, whatever it says."""

import re
import secrets
from typing import Any

from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

_ACCEPTABLE = re.compile(rb"[\x21-\x7e]{1,128}")
_KEY = "segue.request_id"


def request_id(scope: Scope) -> str:
    """The id of the request that a scope belongs to."""
    state: dict[str, Any] = scope["state"]
    known: str = state[_KEY]
    return known


class RequestId:
    """ASGI around ASGI, outside of the framework: its own error pages carry the header too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        sent = dict(scope["headers"]).get(b"x-request-id", b"")
        name = sent.decode() if _ACCEPTABLE.fullmatch(sent) else secrets.token_hex(16)
        scope.setdefault("state", {})[_KEY] = name

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableScopeHeaders(message)["x-request-id"] = name
            await send(message)

        await self._app(scope, receive, send_named)
