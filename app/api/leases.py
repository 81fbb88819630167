"""A request keeps its model: from before it is checked until its answer's last byte, or until its client has left.

Owns that time, which is the request's own, and the waiting for a model that is not there yet. Refuses to know who is
loaded and who leaves.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any

from litestar import Request
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from app.api.disconnect import unless_gone
from app.api.journal import record
from app.completion.checks import Rules, check_fields, check_model
from app.completion.record import Outcome
from app.completion.serving import House, Serving
from app.errors import TimedOut
from app.member import Member
from app.schemas import CompletionRequest

_KEY = "segue.leases"


class Leases:
    """ASGI around ASGI: what a request has taken is given back when all of it is over."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        with ExitStack() as held:
            scope.setdefault("state", {})[_KEY] = held
            await self._app(scope, receive, send)


class Leasing:
    """How handlers come by the model that a request names."""

    def __init__(self, house: House, rules: Rules, timeout: float | None) -> None:
        """timeout: seconds that a request may wait for a model."""
        self._house = house
        self._rules = rules
        self._timeout = timeout

    async def of(self, request: Request[Any, Any, Any], name: str | None) -> Serving:
        """The model of that name, or the first, for as long as the request lasts.

        Clients of these routes name models as they like: where there is one, it is meant. Raises ModelNotFound,
        Overloaded, Unloadable, TimedOut, and ClientGone.
        """
        is_lone = len(self._house.members) == 1
        return await self._taken(request, self._house.find(None if is_lone else name))

    async def asked(self, request: Request[Any, Any, Any], asked: CompletionRequest) -> Serving:
        """The same for a request for completions, which is refused for what can be seen without the model."""
        known = record(request.scope)
        known.model, known.user = asked.model, asked.user
        check_model(asked, self._rules)
        member = self._house.find(asked.model)
        if not member.is_open:
            check_fields(asked, self._rules)
        return await self._taken(request, member)

    async def _taken(self, request: Request[Any, Any, Any], member: Member[Serving]) -> Serving:
        taking = self._take(request, member)
        return await (taking if member.is_open else unless_gone(request, self._in_time(request, taking)))

    async def _take(self, request: Request[Any, Any, Any], member: Member[Serving]) -> Serving:
        """Nothing comes between taking it and noting that it is to be given back."""
        serving = await self._house.take(member)
        held: ExitStack = request.scope["state"][_KEY]
        held.callback(self._house.release, member)
        return serving

    async def _in_time(self, request: Request[Any, Any, Any], taking: Coroutine[Any, Any, Serving]) -> Serving:
        try:
            async with asyncio.timeout(self._timeout):
                return await taking
        except TimeoutError:
            record(request.scope).outcome = Outcome.EXPIRED
            raise TimedOut(f"The model was not loaded within {self._timeout:g} seconds (--request-timeout).") from None
