"""Errors of what stands before the application, in the one envelope: a proxy's plain words, a replica that died.

Owns their form; refuses to know which proxy it is. What the application itself answers passes as it is.
"""

from typing import Any

import msgspec
from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from app.api import sse
from app.api.affinity import Affinity
from app.api.errors import HEADERS, describe
from app.api.request_id import RequestId, request_id
from app.errors import GenerationFailed, Overloaded, SegueError, Unavailable
from app.schemas import ErrorResponse


class Front:
    """ASGI around ASGI, within RequestId: the proxy and the replica behind it call a request by the same id."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        request = request_id(scope)
        MutableScopeHeaders(scope)["x-request-id"] = request
        answer = _Answer(send)
        await self._app(scope, receive, answer.send)
        if answer.is_over:
            return
        status, body = describe(answer.error, request)
        told = ErrorResponse(body)
        if answer.is_stream:
            await send({"type": "http.response.body", "body": sse.event(told), "more_body": False})
        elif not answer.has_begun:
            await ASGIResponse(
                body=msgspec.json.encode(told),
                status_code=status,
                media_type="application/json",
                headers=HEADERS.get(status, {}),
            )(scope, receive, send)


class _Answer:
    """A response on its way: held back where it is a foreign error, and watched for its end."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.error: SegueError = GenerationFailed("The replica that had this request is gone")
        self.has_begun = self.is_stream = self.is_over = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kind = MutableScopeHeaders(message).get("content-type", "")
            if message["status"] >= 400 and kind.startswith("text/plain"):
                self.error = _meaning(message["status"])
                return
            self.has_begun, self.is_stream = True, kind.startswith(sse.MEDIA_TYPE)
        if self.has_begun:
            self.is_over = message["type"] == "http.response.body" and not message.get("more_body")
            await self._send(message)


def _meaning(status: int) -> SegueError:
    """What a proxy means by an error of its own."""
    if status == 429:
        return Overloaded("The waiting line is full (--max-waiting).")
    return Unavailable("No replica can take this request now.")


def before_replicas() -> list[Any]:
    """What Ray's proxies do to each request, the innermost first: they are told of it by this function's name."""
    from starlette.middleware import Middleware  # it comes with Ray

    return [Middleware(Affinity), Middleware(Front), Middleware(RequestId)]
