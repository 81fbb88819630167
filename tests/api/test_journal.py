"""The journal by itself: when a request is over, and how it ended."""

from typing import Any

import pytest
from litestar.types import Message, Receive, Scope, Send

from app.api.journal import Journal, outcome
from app.api.metrics import Metrics
from app.completion.record import Outcome
from app.completion.serving import Seat


def scope() -> Any:
    return {"type": "http", "method": "GET", "path": "/", "path_template": "/", "state": {"segue.request_id": "x"}}


async def nothing() -> Any:
    """What a client sends of which nothing is read."""
    raise AssertionError


def counted(metrics: Metrics, status: str = "200") -> float:
    return metrics.registry.get_sample_value("segue_requests_total", {"route": "/", "status": status}) or 0


def metrics() -> Metrics:
    return Metrics([Seat(("toy",), 1, 1)], labelled=False)


async def answer(_: Scope, __: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"a", "more_body": True})
    await send({"type": "http.response.body", "body": b"b", "more_body": False})


async def test_who_has_the_end_of_an_answer_finds_it_counted_once() -> None:
    counts, seen = metrics(), []

    async def send(_: Message) -> None:
        seen.append(counted(counts))

    await Journal(answer, counts, with_texts=False)(scope(), nothing, send)
    assert seen == [0, 0, 1]
    assert counted(counts) == 1


async def test_an_application_that_breaks_before_its_answer_is_counted_as_a_fault() -> None:
    async def broken(_: Scope, __: Receive, ___: Send) -> None:
        raise ZeroDivisionError

    async def send(_: Message) -> None:
        """Nobody looks."""

    counts = metrics()
    with pytest.raises(ZeroDivisionError):
        await Journal(broken, counts, with_texts=False)(scope(), nothing, send)
    assert counted(counts, "500") == 1
    assert counts.registry.get_sample_value("segue_faults_total") == 1


@pytest.mark.parametrize(
    ("told", "status", "ended"),
    [
        (None, 200, Outcome.DONE),
        (None, 400, Outcome.REFUSED),
        (None, 429, Outcome.REFUSED),
        (None, 499, Outcome.LEFT),
        (None, 500, Outcome.BROKEN),
        (Outcome.DONE, 200, Outcome.DONE),
        (Outcome.DONE, 500, Outcome.BROKEN),
        (Outcome.LEFT, 200, Outcome.LEFT),
        (Outcome.FAILED, 500, Outcome.FAILED),
        (Outcome.EXPIRED, 503, Outcome.EXPIRED),
    ],
)
def test_the_record_goes_before_the_status(told: Outcome | None, status: int, ended: Outcome) -> None:
    assert outcome(told, status) is ended
