"""Rows that are shared out among threads come to what they come to in one."""

import threading

import numpy as np
import pytest

from app.engine import crew
from app.engine.crew import Crew
from app.engine.params import SamplingParams
from app.engine.sampler import Sampler, Want

N_VOCAB = 1 << 18
"""A row is as much as a sampler takes at once."""


def test_scores_come_in_the_order_of_the_rows() -> None:
    rows = np.random.default_rng(1).normal(0, 3, (7, N_VOCAB)).astype(np.float32)
    alone = Sampler(N_VOCAB).scores(rows, 3)
    for n_threads in (1, 2, 5, 100):
        shared = Crew(N_VOCAB, n_threads).scores(rows, 3)
        assert [(s.normaliser, s.top, s.of(9)) for s in shared] == [(s.normaliser, s.top, s.of(9)) for s in alone]


def test_no_rows_have_no_scores() -> None:
    assert Crew(5, 2).scores(np.zeros((0, 5), np.float32), 1) == []
    assert Crew(5, 2).sample(np.zeros((0, 5), np.float32), []) == []


def test_two_rows_are_worked_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=30)
    scores = Sampler._scores
    monkeypatch.setattr(Sampler, "_scores", lambda *given: (both.wait(), scores(*given))[1])
    rows = np.zeros((2, N_VOCAB), np.float32)
    assert len(Crew(N_VOCAB, 2).scores(rows, 0)) == 2
    assert not both.broken


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_a_fault_in_any_part_is_raised_and_the_next_rows_are_worked_on(bad: int) -> None:
    rows = np.zeros((4, N_VOCAB), np.float32)
    rows[bad] = np.nan
    shared = Crew(N_VOCAB, 4)
    with pytest.raises(FloatingPointError):
        shared.sample(rows, [Want(i, SamplingParams(), [0.5]) for i in range(4)])
    rows[bad] = 0
    assert len(shared.sample(rows, [Want(i, SamplingParams(), [0.5]) for i in range(4)])) == 4


def test_its_threads_end_with_it() -> None:
    before = set(threading.enumerate())
    shared = Crew(N_VOCAB, 2)
    shared.scores(np.zeros((2, N_VOCAB), np.float32), 0)
    [mine] = [each for each in threading.enumerate() if each not in before]
    del shared
    mine.join(30)
    assert not mine.is_alive()


def test_small_rows_are_not_worth_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "ThreadPoolExecutor", lambda *_, **__: None)
    assert len(Crew(1000, 4).scores(np.zeros((60, 1000), np.float32), 0)) == 60
