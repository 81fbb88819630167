"""API keys: where any is configured, every route but those marked open wants one."""

import hmac
from collections.abc import Iterable
from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler

from app.errors import Unauthorized

OPEN = "open"
"""The `opt` of a handler that needs no key."""


class KeyGuard:
    """A Litestar guard. Keys are compared in constant time, each with all, and are never shown."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = [key.encode() for key in keys]

    def __call__(self, connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
        """Raises Unauthorized where a key is wanted and none of ours was sent."""
        if not self._keys or handler.opt.get(OPEN):
            return
        scheme, _, sent = connection.headers.get("authorization", "").partition(" ")
        known = [hmac.compare_digest(key, sent.strip().encode("latin-1")) for key in self._keys]
        if scheme.lower() != "bearer" or not any(known):
            raise Unauthorized("This server needs an API key: send 'Authorization: Bearer KEY'.")
