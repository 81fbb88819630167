"""The engine's thread and its way to the event loop and back."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from app.engine.backend import Chunk
from app.engine.engine import Engine, Run
from app.engine.events import Delta, Finished, PromptRead
from app.engine.params import Bias, Job, SamplingParams
from app.engine.scheduler import Budget
from app.errors import GenerationFailed, Overloaded, SegueError, Unavailable
from tests.engine.fakes import FakeBackend, Poison, job
from tests.engine.test_batcher import Result, alone, same

PATIENCE = 20
"""Seconds after which a test has hung; none takes a tenth of one."""


class Gate:
    """Lets decodes through one by one, or all of them."""

    def __init__(self, backend: FakeBackend) -> None:
        self._permits = threading.Semaphore(0)
        self._is_open = False
        backend.fails = self._pass

    def _pass(self, _number: int, _chunks: list[Chunk]) -> None:
        if not self._is_open:
            assert self._permits.acquire(timeout=PATIENCE), "the test forgot the gate"

    def let(self, n: int = 1) -> None:
        self._permits.release(n)

    def open(self) -> None:
        self._is_open = True
        self._permits.release()


@asynccontextmanager
async def engine_of(
    backend: FakeBackend,
    n_parallel: int = 4,
    max_waiting: int = 16,
    gate: Gate | None = None,
    patience: float = 2 * PATIENCE,
) -> AsyncIterator[Engine]:
    engine = Engine(backend, Budget(n_parallel, 64, 16, 64), max_waiting, patience=patience)
    engine.start()
    try:
        with anyio.fail_after(PATIENCE):
            yield engine
    finally:
        if gate:
            gate.open()
        await engine.close()


async def result_of(run: Run) -> Result:
    result = Result()
    async for events in run.steps():
        for event in events:
            result.take(event)
    return result


def assert_vacant(engine: Engine, backend: FakeBackend) -> None:
    """Only residents hold cells, and they give way. To be called while the engine has nothing to do."""
    batcher = engine._batcher
    assert (engine.n_running, engine.n_waiting, engine.n_cells_used) == (0, 0, backend.n_used)
    while batcher._scheduler.cache.evict():
        pass
    assert engine.n_cells_used == backend.n_used == 0


async def error_of(run: Run) -> SegueError | None:
    try:
        async for _ in run.steps():
            pass
    except SegueError as error:
        return error
    return None


def endless(**fields: Any) -> Job:
    return job([1, 2, 3], 100_000, end_tokens=frozenset(), **fields)


async def test_runs_of_many_at_once_come_to_what_each_comes_to_alone() -> None:
    backend = FakeBackend(n_cells=60, n_slots=6)
    requests = [
        [job([1, 2], 9, seed=0, n_candidates=3)],
        [job([4], 12, seed=1, n_top=2, stops=("ab",)), job([5, 6, 7], 3, seed=2)],
        [job([8] * 20, 0, score_from=1, n_top=1)],
        [job([9, 1], 0)],
        *([job([k], 10, seed=k)] for k in range(8)),
    ]
    found: dict[int, Result] = {}

    async def ask(i: int, engine: Engine) -> None:
        found[i] = await result_of(engine.submit(requests[i]))

    async with engine_of(backend, n_parallel=3) as engine:
        async with anyio.create_task_group() as group:
            for i in range(len(requests)):
                group.start_soon(ask, i, engine)
        assert_vacant(engine, backend)
    for i, jobs in enumerate(requests):
        same(found[i], alone(*jobs))


async def test_the_iteration_ends_with_the_last_candidate() -> None:
    async with engine_of(FakeBackend()) as engine:
        run = engine.submit([job([1], 3, n_candidates=2), job([2], 5)])
        events = [event async for step in run.steps() for event in step]
        assert sum(isinstance(event, Finished) for event in events) == 3
        assert isinstance(events[-1], Finished)
        assert run.is_over


async def test_a_step_is_delivered_while_the_next_is_computed() -> None:
    backend = FakeBackend()
    gate = Gate(backend)
    async with engine_of(backend, gate=gate) as engine:
        steps = engine.submit([endless(sampling=SamplingParams(bias=Bias.of({0: 100})))]).steps()
        gate.let()
        first = await anext(steps)
        assert any(isinstance(event, PromptRead) for event in first)
        gate.let()
        assert any(isinstance(event, Delta) for event in await anext(steps))
        await steps.aclose()


async def test_leaving_the_iteration_early_cancels() -> None:
    backend = FakeBackend()
    async with engine_of(backend) as engine:
        steps = engine.submit([endless(), endless(n_candidates=2)]).steps()
        await anext(steps)
        await steps.aclose()
        # Commands are taken in their order: when the next one is done, the cancelled one is gone.
        same(await result_of(engine.submit([job([4], 3)])), alone(job([4], 3)))
        assert backend.n_used <= 3, "more is held than what the one that ended has read"
        assert_vacant(engine, backend)


async def test_a_cancelled_task_cancels_its_run() -> None:
    backend = FakeBackend()
    async with engine_of(backend) as engine:
        run = engine.submit([endless()])
        has_begun = asyncio.Event()

        async def listen() -> None:
            async for _ in run.steps():
                has_begun.set()

        task = asyncio.create_task(listen())
        await has_begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await result_of(engine.submit([job([4], 3)]))
        assert run.is_over
        assert_vacant(engine, backend)


async def test_a_run_may_be_cancelled_before_it_starts_and_after_its_end() -> None:
    backend = FakeBackend()
    gate = Gate(backend)
    async with engine_of(backend, n_parallel=1, gate=gate) as engine:
        first, second = engine.submit([job([1], 2)]), engine.submit([job([20, 21], 2)])
        assert engine.n_waiting == 2
        second.cancel()
        second.cancel()
        assert engine.n_waiting == 1
        gate.open()
        same(await result_of(first), alone(job([1], 2)))
        first.cancel()
        await result_of(engine.submit([job([4], 3)]))
    assert all(20 not in chunk.tokens[:1] or chunk.start for batch in backend.batches for chunk in batch)


async def test_a_full_line_takes_no_more_and_queues_nothing() -> None:
    backend = FakeBackend()
    gate = Gate(backend)
    async with engine_of(backend, n_parallel=1, max_waiting=1, gate=gate) as engine:
        first = engine.submit([job([1], 5)])
        second = engine.submit([job([2], 5)])
        with pytest.raises(Overloaded):
            engine.submit([job([3], 5)])
        assert engine.n_waiting == 2
        gate.open()
        same(await result_of(first), alone(job([1], 5)))
        same(await result_of(second), alone(job([2], 5)))
        same(await result_of(engine.submit([job([4], 5)])), alone(job([4], 5)))
    assert {int(c.tokens[0]) for batch in backend.batches for c in batch if c.start == 0} == {1, 2, 4}


async def test_who_runs_does_not_wait() -> None:
    backend = FakeBackend()
    gate = Gate(backend)
    async with engine_of(backend, n_parallel=1, max_waiting=1, gate=gate) as engine:
        runs = [engine.submit([endless()])]
        steps = runs[0].steps()
        gate.let()
        await anext(steps)
        assert (engine.n_running, engine.n_waiting) == (1, 0)
        runs.append(engine.submit([job([2], 5)]))
        assert engine.n_waiting == 1
        with pytest.raises(Overloaded):
            engine.submit([job([3], 5)])
        for run in runs:
            run.cancel()


async def test_a_fault_fails_its_run_and_the_next_is_served() -> None:
    backend = FakeBackend()
    backend.nan_after = frozenset({3})
    async with engine_of(backend) as engine:
        ill, healthy = engine.submit([job([3, 3], 4)]), engine.submit([job([1], 4, banned=frozenset({3}))])
        assert isinstance(await error_of(ill), GenerationFailed)
        same(await result_of(healthy), alone(job([1], 4, banned=frozenset({3}))))
        assert engine.is_healthy
        assert engine.n_waiting == 0


async def test_a_raising_decode_leaves_the_engine_healthy() -> None:
    backend = FakeBackend()

    def fail(number: int, _: list[Chunk]) -> None:
        if number == 1:
            raise Poison

    backend.fails = fail
    async with engine_of(backend) as engine:
        assert isinstance(await error_of(engine.submit([endless()])), GenerationFailed)
        same(await result_of(engine.submit([job([1], 4)])), alone(job([1], 4)))
        assert engine.is_healthy


async def test_after_close_nothing_is_taken_and_the_unfinished_fail() -> None:
    backend = FakeBackend()
    async with engine_of(backend) as engine:
        assert engine.is_healthy
        run, silent = engine.submit([endless()]), engine.submit([endless()])
        steps = run.steps()
        await anext(steps)
        await engine.close()
        assert not engine.is_healthy
        assert backend.is_closed
        with pytest.raises(Unavailable):
            engine.submit([job([1], 1)])
        with pytest.raises(Unavailable):
            async for _ in steps:
                pass
        assert isinstance(await error_of(silent), Unavailable)
        assert engine.n_waiting == 0


async def test_an_engine_may_be_closed_before_it_has_started() -> None:
    backend = FakeBackend()
    engine = Engine(backend, Budget(1, 8, 1, 8), 1, patience=PATIENCE)
    assert not engine.is_healthy
    with pytest.raises(Unavailable):
        engine.submit([job([1], 1)])
    await engine.close()
    assert backend.is_closed


def broken(monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
    def plan() -> None:
        raise RuntimeError("a bug in the scheduler")

    monkeypatch.setattr(engine._batcher._scheduler, "plan", plan)


async def test_a_thread_that_dies_takes_no_run_into_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine_of(FakeBackend()) as engine:
        broken(monkeypatch, engine)
        runs = [engine.submit([job([k], 4)]) for k in (1, 2)]
        for run in runs:
            assert isinstance(await error_of(run), Unavailable)
        await asyncio.to_thread(engine._thread.join, PATIENCE)
        assert not engine.is_healthy
        with pytest.raises(Unavailable):
            engine.submit([job([1], 1)])


async def test_no_run_is_taken_once_the_others_have_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even while the dying thread is still alive: nobody would serve it."""
    is_checked = threading.Event()

    class SlowLoop:
        """Calls as the loop does, and keeps the calling thread alive until the test has looked."""

        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            self._loop = loop

        def call_soon_threadsafe(self, callback: Callable[..., object], *arguments: Any) -> None:
            self._loop.call_soon_threadsafe(callback, *arguments)
            if callback == engine._fail_all:
                is_checked.wait(PATIENCE)

    async with engine_of(FakeBackend()) as engine:
        broken(monkeypatch, engine)
        monkeypatch.setattr(engine, "_loop", SlowLoop(asyncio.get_running_loop()))
        assert isinstance(await error_of(engine.submit([job([1], 4)])), Unavailable)
        try:
            assert not engine.is_healthy
            with pytest.raises(Unavailable):
                engine.submit([job([1], 1)])
        finally:
            is_checked.set()


# Hanging


async def test_a_step_that_hangs_turns_health_and_tells_who_waits_and_ends_in_service_again() -> None:
    backend = FakeBackend()
    gate = Gate(backend)
    async with engine_of(backend, gate=gate, patience=0.05) as engine:
        for run in (engine.submit([job([1, 2], 3)]), engine.submit([job([3], 3)])):
            with pytest.raises(Unavailable, match="stuck"):
                await result_of(run)
        assert not engine.is_healthy
        with pytest.raises(Unavailable):
            engine.submit([job([1], 1)])
        gate.open()
        work = job([1, 2, 3], 4)
        same(await result_of(await submitted(engine, work)), alone(work))
        assert engine.is_healthy
        assert engine.n_running == 0


async def submitted(engine: Engine, work: Job) -> Run:
    """As soon as the engine takes it."""
    while True:
        try:
            return engine.submit([work])
        except Unavailable:
            await asyncio.sleep(0)


async def test_a_hanging_engine_is_closed_without_its_backend() -> None:
    backend = FakeBackend()
    gate = Gate(backend)
    engine = Engine(backend, Budget(4, 64, 16, 64), 4, patience=0.05)
    engine.start()
    run = engine.submit([job([1, 2], 3)])
    with pytest.raises(Unavailable):
        await result_of(run)
    with anyio.fail_after(PATIENCE):
        await engine.close()
    assert not backend.is_closed
    gate.open()
