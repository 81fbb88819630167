"""HEAD is answered as GET, without the body, which uvicorn leaves out by itself."""

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send


class HeadAsGet:
    """ASGI around ASGI. The scope is copied, since uvicorn looks for the method in its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)
