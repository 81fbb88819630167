"""A model's seat: what it tells of a model that works, that is to leave, and that has left."""

from types import SimpleNamespace
from typing import Any

import pytest

from app.completion.serving import Seat
from app.engine.stats import Snapshot


def seated(*, is_healthy: bool = True) -> Seat:
    """A seat whose model takes requests of 512 tokens, though it was thought to take none."""
    engine = SimpleNamespace(is_healthy=is_healthy, snapshot=Snapshot)
    service = SimpleNamespace(served=SimpleNamespace(n_context=512))
    serving: Any = SimpleNamespace(engine=engine, service=service, meta=None, n_bytes=1)
    return Seat(("a",), 0, 0, tenant=serving)


@pytest.mark.parametrize(
    ("is_leaving", "has_users", "is_sound"),
    [(False, False, False), (False, True, False), (True, True, False), (True, False, True)],
)
async def test_an_engine_that_hangs_is_a_fault_until_it_is_being_closed(
    is_leaving: bool, has_users: bool, is_sound: bool
) -> None:
    """One that is to leave when its work is done is not excused: those who wait for its room would wait for ever."""
    seat = seated(is_healthy=False)
    seat.is_leaving = is_leaving
    if has_users:
        seat.is_free.clear()
    assert seat.is_sound is is_sound


async def test_what_it_was_is_told_when_it_has_left() -> None:
    seat = seated()
    before = seat.listed()[0].max_model_len
    seat.leave()
    (listed,) = seat.listed()
    assert before == listed.max_model_len == 512
    assert listed.state == "unloaded"
    assert seat.is_sound
