"""One line in the log and one count in the metrics for each request, when it ends.

Owns the line: who asked for what, what it cost, how it ended. Never in it: keys, and prompts and completions unless
they are asked for. Whatever a client chose is cut to a bound; app.log escapes it.
"""

import logging
from time import perf_counter
from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from app.api.metrics import Metrics
from app.api.request_id import request_id
from app.completion.record import Outcome, Record
from app.log import fields

logger = logging.getLogger("segue.requests")

GONE = 499
"""The status where nobody is left to see one."""
LONGEST = 200
"""Characters of a client's own words in a line."""
_KEY = "segue.record"


def record(scope: Scope) -> Record:
    """The record of the request that a scope belongs to."""
    state: dict[str, Any] = scope["state"]
    known: Record = state[_KEY]
    return known


class Journal:
    """ASGI around ASGI. A request is over just before its last bytes are sent: who has them finds it counted."""

    def __init__(self, app: ASGIApp, metrics: Metrics, *, with_texts: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._with_texts = with_texts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        entry = _Entry(self._metrics, scope, Record(texts={} if self._with_texts else None))

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                entry.status = message["status"]
            elif message["type"] == "http.response.body" and not message.get("more_body"):
                entry.close()
            await send(message)

        try:
            await self._app(scope, receive, send_noted)
        finally:
            entry.close()


class _Entry:
    """One request of the journal. Without an answer, its status is that of a fault."""

    def __init__(self, metrics: Metrics, scope: HTTPScope, record: Record) -> None:
        scope.setdefault("state", {})[_KEY] = record
        self.status = 500
        self._metrics = metrics
        self._scope = scope
        self._record = record
        self._began = perf_counter()
        self._is_closed = False

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        known, route = self._record, self._scope.get("path_template", "unknown")
        known.outcome = outcome(known.outcome, self.status)
        self._metrics.count(known, route, self.status)
        level = logging.INFO if known.was_queued or self.status >= 400 else logging.DEBUG
        if logger.isEnabledFor(level):
            logger.log(level, "request", extra=fields(**self._line()))

    def _line(self) -> dict[str, Any]:
        known, scope = self._record, self._scope
        line = {
            "request_id": request_id(scope),
            "method": scope["method"],
            "path": scope["path"][:LONGEST],
            "status": self.status,
            "outcome": known.outcome,
            "param": known.param,
            "code": known.code,
            "id": known.id,
            "model": known.model and known.model[:LONGEST],
            "user": known.user and known.user[:LONGEST],
            "seconds": perf_counter() - self._began,
        }
        return line | _costs(known) if known.was_queued else line


def _costs(known: Record) -> dict[str, Any]:
    costs: dict[str, Any] = {
        "prompt_tokens": sum(known.lengths),
        "cached_tokens": known.n_cached,
        "completion_tokens": known.n_sampled,
        "finish_reasons": dict(known.reasons),
        "waited": known.waited,
        "first_token": known.first,
        "per_token": known.per_token,
    }
    if known.texts is not None:
        costs |= {"prompts": known.prompts, "completions": ["".join(known.texts[key]) for key in sorted(known.texts)]}
    return costs


def outcome(told: Outcome | None, status: int) -> Outcome:
    """How a request ended: as its record tells, else by the status of its answer."""
    if told is not None and not (status == 500 and told is Outcome.DONE):
        return told
    if status == GONE:
        return Outcome.LEFT
    if status == 500:
        return Outcome.BROKEN
    return Outcome.REFUSED if status >= 400 else Outcome.DONE
