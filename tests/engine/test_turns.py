"""Engines of one process compute in turns."""

import asyncio
import threading
from collections.abc import Sequence as Ordered
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.backend import Chunk
from app.engine.engine import Engine
from app.engine.events import Finished
from app.engine.scheduler import Budget
from app.engine.turns import InTurn, Turns
from tests.engine.fakes import FakeBackend, job

PATIENCE = 30.0


class Watched(FakeBackend):
    """Says who computes when, and in which thread."""

    n_at_once = 0
    most_at_once = 0
    order: list["Watched"]
    threads: set[int]

    def decode(self, chunks: Ordered[Chunk]) -> NDArray[np.float32]:
        Watched.n_at_once += 1
        Watched.most_at_once = max(Watched.most_at_once, Watched.n_at_once)
        Watched.order.append(self)
        Watched.threads.add(threading.get_ident())
        rows = super().decode(chunks)
        Watched.n_at_once -= 1
        return rows


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Watched.n_at_once = Watched.most_at_once = 0
    Watched.order, Watched.threads = [], set()


def engine(backend: FakeBackend, turns: Turns) -> Engine:
    return Engine(InTurn(backend, turns), Budget(4, 1 << 12, 1 << 10, 1 << 12), 8, patience=60)


async def tokens(engine: Engine, n: int) -> list[int]:
    """What comes of a job of n tokens."""
    found: list[Any] = []
    async for step in engine.submit([job([1, 2], n, end_tokens=frozenset(), token_ids=True)]).steps():
        found += [token.id for event in step for token in getattr(event, "tokens", [])]
        if any(isinstance(event, Finished) for event in step):
            break
    return found


async def test_one_decode_at_a_time_in_one_thread_and_each_has_its_own_answer() -> None:
    alone = Engine(FakeBackend(), Budget(4, 1 << 12, 1 << 10, 1 << 12), 8, patience=60)
    alone.start()
    wanted = await tokens(alone, 200)
    await alone.close()
    turns = Turns()
    backends = [Watched(), Watched()]
    engines = [engine(backend, turns) for backend in backends]
    for each in engines:
        each.start()
    assert await asyncio.gather(*(tokens(each, 200) for each in engines)) == [wanted] * 2
    for each in engines:
        await each.close()
    assert Watched.most_at_once == 1
    assert len(Watched.threads) == 1
    assert all(backend.is_closed for backend in backends)


def test_turns_come_in_the_order_in_which_they_were_asked_for() -> None:
    turns, begun, gate, done = Turns(), threading.Event(), threading.Event(), list[int]()

    def work(number: int) -> NDArray[np.float32]:
        begun.set()
        assert gate.wait(PATIENCE)
        done.append(number)
        return np.empty((0, 1), np.float32)

    with ThreadPoolExecutor(5) as threads:
        asked = [threads.submit(turns.do, lambda: work(0))]
        assert begun.wait(PATIENCE)
        for number in range(1, 5):
            asked.append(threads.submit(turns.do, partial(work, number)))
            while turns._asked.qsize() < number and not asked[-1].done():
                pass  # it is about to stand in the line
        gate.set()
    assert done == [0, 1, 2, 3, 4]


async def test_a_decode_that_fails_fails_where_it_was_asked_for_and_the_next_is_done() -> None:
    turns, backend = Turns(), FakeBackend()

    def fail(number: int, _: list[Chunk]) -> None:
        if number == 0:
            raise ZeroDivisionError("a fault")

    backend.fails = fail
    turned = InTurn(backend, turns)
    chunk = Chunk(0, 0, [1], 1)
    with pytest.raises(ZeroDivisionError, match="a fault"):
        turned.decode([chunk])
    assert len(turned.decode([chunk])) == 1
