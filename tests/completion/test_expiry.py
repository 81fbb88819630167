"""What was taken goes on, and what expires ends, at whatever point of its work it is."""

from collections.abc import Sequence as Ordered
from typing import cast

import pytest

from app.completion.search import Search
from app.engine.backend import Vocabulary
from app.engine.engine import Engine, Run
from app.engine.events import Finished
from app.engine.params import Job
from app.engine.scheduler import Budget
from app.errors import Overloaded, TimedOut
from tests.engine.fakes import PIECES, FakeBackend, job


class Pieces:
    """As much of a vocabulary as a search asks for."""

    def piece(self, token: int) -> bytes:
        return PIECES[token]


class Short(Engine):
    """Its line is full as soon as it has taken one request."""

    _is_full = False

    def submit(self, jobs: Ordered[Job], *, queues: bool = True) -> Run:
        if queues and self._is_full:
            raise Overloaded("full")
        self._is_full = True
        return super().submit(jobs, queues=queues)


async def test_a_search_that_was_taken_is_scored_though_the_line_is_full_by_then() -> None:
    engine = Short(FakeBackend(), Budget(16, 1 << 12, 1 << 10, 1 << 12), 8, patience=60)
    engine.start()
    try:
        search = Search(engine, cast(Vocabulary, Pieces()), [job([1, 2])], [3], 1)
        events = [event async for step in search.steps() for event in step]
        assert isinstance(events[-1], Finished)
    finally:
        await engine.close()


async def test_a_search_that_expires_between_sampling_and_scoring_scores_nothing() -> None:
    backend = FakeBackend()
    engine = Engine(backend, Budget(16, 1 << 12, 1 << 10, 1 << 12), 8, patience=60)
    engine.start()
    try:
        search = Search(engine, cast(Vocabulary, Pieces()), [job([1, 2])], [3], 1)
        async for _ in engine.submit([job([1], 50, end_tokens=frozenset())]).steps():
            pass  # much longer than the samples, which are over with it
        n_decodes = backend.n_decodes
        search.expire(TimedOut("too late"))
        with pytest.raises(TimedOut):
            async for _ in search.steps():
                pass
        assert backend.n_decodes == n_decodes
    finally:
        await engine.close()


async def test_what_expires_is_gone_from_the_engine_though_nobody_reads_it() -> None:
    """Its client may have stalled: the one sequence that may run is free for the next."""
    engine = Engine(FakeBackend(), Budget(1, 1 << 12, 1 << 10, 1 << 12), 8, patience=60)
    engine.start()
    try:
        unread = engine.submit([job([1], 1 << 19, end_tokens=frozenset())])
        following = engine.submit([job([2], 3)])
        unread.expire(TimedOut("too late"))
        async for _ in following.steps():
            pass
        with pytest.raises(TimedOut):
            async for _ in unread.steps():
                pass
    finally:
        await engine.close()
