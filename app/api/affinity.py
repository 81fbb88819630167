"""Requests that begin alike go by one name, so that a router can bring them to the replica that has read it before.

Owns what a beginning is, and the header that names it; refuses to know who routes by it.
"""

from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send
from msgspec import UNSET, Struct, UnsetType

from app.api.bodies import MAX_BODY, off_loop
from app.schemas import Prompt

HEADER = "x-session-id"
"""What Ray Serve reads, and whoever knows better than we may send."""
N_CHARACTERS = 256
N_TOKENS = 64
"""A beginning's length. A shorter prompt is soon read anywhere; a longer beginning would part the questions of one
text, and a conversation from its own first turn."""


class _Prompted(Struct):
    """What a beginning is taken from, whatever else a request says."""

    prompt: Prompt | UnsetType | None = UNSET


_decode = msgspec.json.Decoder(_Prompted).decode


def beginning(body: bytes) -> str | None:
    """The name of the first prompt's beginning; None where it is too short, or the body no request."""
    try:
        prompt = _decode(body).prompt
    except (msgspec.MsgspecError, RecursionError):
        return None
    first: object = prompt[0] if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else prompt
    if isinstance(first, str) and len(first) >= N_CHARACTERS:
        return _name(first[:N_CHARACTERS])
    if isinstance(first, list) and len(first) >= N_TOKENS:
        return _name(first[:N_TOKENS])
    return None


def _name(start: Sequence[object]) -> str:
    return blake2b(repr(start).encode(), digest_size=16).hexdigest()


class Affinity:
    """ASGI around ASGI. A request's body is held until it is whole, as every route that has one would do."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP and scope["method"] == "POST":
            held = await _held(receive)
            headers = MutableScopeHeaders(scope)
            if HEADER not in headers and (name := await off_loop(_body(held), beginning)):
                headers[HEADER] = name
            receive = _again(held, receive)
        await self._app(scope, receive, send)


async def _held(receive: Receive) -> deque[Any]:
    """The messages of a body, to its end or until it is longer than any is taken."""
    held: deque[Any] = deque()
    n_bytes = 0
    while n_bytes <= MAX_BODY:
        message: Any = await receive()
        held.append(message)
        n_bytes += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    return held


def _body(held: deque[Any]) -> bytes:
    return b"".join(message.get("body", b"") for message in held)


def _again(held: deque[Any], receive: Receive) -> Receive:
    """The messages that were held, then those that come."""

    async def next_message() -> Any:
        return held.popleft() if held else await receive()

    return next_message
