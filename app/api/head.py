"""HEAD is answered as GET, without the body, which uvicorn leaves out by itself; and a 405 says so."""

from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send


class HeadAsGet:
    """ASGI around ASGI. The scope is copied, since uvicorn looks for the method in its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}

        async def send_allowing(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 405:
                headers = MutableScopeHeaders(message)
                headers["allow"] = headers.get("allow", "").replace("GET", "GET, HEAD")
            await send(message)

        await self._app(scope, receive, send_allowing)
