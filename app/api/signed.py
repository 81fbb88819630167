"""`x-segue-replica`: which of several processes answered, as `host:pid`."""

import os
import socket

from litestar.datastructures import MutableScopeHeaders
from litestar.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-segue-replica"


class Signed:
    """ASGI around ASGI: puts the name of this process on each response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._name = f"{socket.gethostname()}:{os.getpid()}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_signed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableScopeHeaders(message)[HEADER] = self._name
            await send(message)

        await self._app(scope, receive, send_signed)
