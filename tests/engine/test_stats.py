"""The engine's counts: they add up, and a snapshot is one."""

import pytest

from app.engine.batcher import Batcher
from app.engine.stats import BOUNDS, PARTS, Snapshot, Stats, Times
from tests.engine.fakes import FakeBackend, Poison, job
from tests.engine.test_batcher import WIDE


@pytest.mark.parametrize("i", range(len(BOUNDS)))
def test_a_bound_belongs_to_the_bucket_that_it_ends(i: int) -> None:
    times = Times()
    times.observe(BOUNDS[i])
    times.observe(BOUNDS[i] * 1.0001)
    assert times.n_within[i] == 1
    assert times.n_within[i + 1] == 1
    assert times.seconds == pytest.approx(BOUNDS[i] * 2.0001)


def test_a_copy_does_not_go_on() -> None:
    times = Times()
    copy = times.copy()
    times.observe(1)
    assert (sum(copy.n_within), copy.seconds) == (0, 0)


def test_laps_follow_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 11.0, 14.0])
    monkeypatch.setattr("app.engine.stats.perf_counter", lambda: next(clock))
    stats = Stats()
    stats.begin()
    stats.lap(stats.plan)
    stats.lap(stats.decode)
    assert (stats.plan.seconds, stats.decode.seconds, stats.sample.seconds) == (1, 3, 0)


def n(times: Times) -> int:
    return sum(times.n_within)


def test_every_step_is_counted_in_all_its_parts() -> None:
    backend = FakeBackend()
    batcher = Batcher(backend, WIDE)
    batcher.submit("owner", [job([1, 2, 3], 5, end_tokens=frozenset())])
    while not batcher.is_idle:
        batcher.step()
    stats = batcher.stats
    assert n(stats.plan) == n(stats.decode) == n(stats.sample) == backend.n_decodes == 5
    assert stats.n_faults == 0


def test_each_request_that_a_fault_costs_is_counted() -> None:
    backend = FakeBackend()

    def fail(_: int, __: object) -> None:
        raise Poison

    backend.fails = fail
    batcher = Batcher(backend, WIDE)
    for owner in ("a", "b"):
        batcher.submit(owner, [job([1], 5)])
    batcher.step()
    assert batcher.stats.n_faults == 2


def test_running_cells_are_those_that_running_sequences_hold() -> None:
    batcher = Batcher(FakeBackend(), WIDE, keeps=True)
    batcher.submit("first", [job([1, 2, 3], 1, end_tokens=frozenset())])
    while not batcher.is_idle:
        batcher.step()
    assert (batcher.n_cells_running, batcher.n_cells_used) == (0, 3)
    batcher.submit("second", [job([4, 5], 9, end_tokens=frozenset())])
    batcher.step()
    assert (batcher.n_cells_running, batcher.n_cells_used) == (2, 5)


def test_the_counts_of_an_engine_go_on_where_those_of_one_before_it_ended() -> None:
    times = Times()
    times.observe(0.0002)
    earlier = Snapshot(n_running=3, n_cells_free=5, n_preempted=1, n_faults=2, steps=dict.fromkeys(PARTS, times))
    now = Snapshot(n_running=1, n_cells_free=7, n_preempted=10, n_faults=20, steps=dict.fromkeys(PARTS, times))
    told = now.after(earlier)
    assert (told.n_running, told.n_cells_free) == (1, 7)
    assert (told.n_preempted, told.n_faults) == (11, 22)
    for part in PARTS:
        assert sum(told.steps[part].n_within) == 2
        assert told.steps[part].n_within[1] == 2
        assert told.steps[part].seconds == pytest.approx(0.0004)
