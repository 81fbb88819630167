"""The end of a server: from the signal on, who comes is told so."""

from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from app.errors import Unavailable


class Drain:
    """A Litestar guard. Requests that passed it before `begin` may finish."""

    def __init__(self) -> None:
        self._has_begun = False

    def begin(self) -> None:
        """Let no more requests in."""
        self._has_begun = True

    def __call__(self, connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        """Raises Unavailable once the end has begun."""
        if self._has_begun:
            raise Unavailable("The server is shutting down.")
