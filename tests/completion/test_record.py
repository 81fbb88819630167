"""A request's record: its counts and times, from its events alone."""

from collections.abc import Callable

import pytest

from app.completion import record as record_module
from app.completion.record import Outcome, Record
from app.engine.events import Delta, Finished, FinishReason, PromptRead, Started


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(record_module, "perf_counter", clock)
    return clock


def queued(*lengths: int) -> Record:
    record = Record(lengths=list(lengths), texts={})
    record.queue()
    return record


def read(length: int) -> Record:
    """One whose prompt has just been read."""
    record = queued(length)
    record.count(PromptRead(0, 0))
    return record


def delta(n_sampled: int, candidate: int = 0, text: str = "x") -> Delta:
    return Delta(0, candidate, text, [], n_sampled)


def finished(n_sampled: int, candidate: int = 0, reason: FinishReason = FinishReason.STOP) -> Finished:
    return Finished(0, candidate, "", [], reason, n_sampled, 0.0)


def test_times_count_from_when_it_was_queued(clock: Clock) -> None:
    record = queued(3)
    steps: list[tuple[float, Callable[[], None]]] = [
        (101, lambda: record.count(Started(0))),
        (103, lambda: record.count(PromptRead(0, 0))),
        (105, lambda: record.count(delta(2))),
        (109, lambda: record.count(finished(4))),
    ]
    for clock.now, step in steps:
        step()
    assert (record.waited, record.first, record.per_token) == (1, 3, 2)


def test_time_per_token_is_that_of_a_candidate_however_many_run_beside_it(clock: Clock) -> None:
    record = read(3)
    for candidate in range(4):
        record.count(delta(1, candidate))
    clock.now += 10
    for candidate in range(4):
        record.count(finished(11, candidate))
    assert record.per_token == 1


def test_a_first_token_counts_from_the_step_that_read_its_prompt_however_late_its_text_comes(clock: Clock) -> None:
    record = read(3)
    clock.now += 10
    record.count(finished(11))
    assert (record.first, record.per_token) == (0, 1)


def test_one_token_and_a_scored_prompt_have_no_time_per_token(clock: Clock) -> None:
    record = read(3)
    record.count(finished(0, reason=FinishReason.LENGTH))
    assert (record.first, record.per_token) == (None, None)
    record = read(3)
    record.count(finished(1))
    assert (record.first, record.per_token) == (0, None)


def test_prompts_count_when_they_are_read_and_usage_counts_them_all() -> None:
    record = queued(3, 5)
    record.count(PromptRead(1, n_cached=4))
    assert (record.n_prompts, record.n_hits, record.n_read, record.n_cached) == (1, 1, 5, 4)
    record.count(PromptRead(0, n_cached=0))
    record.count(delta(2))
    record.count(finished(3, candidate=1))
    assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (8, 5)


def test_reasons_are_counted_and_texts_joined_by_candidate() -> None:
    record = read(3)
    record.count(delta(1, text="a"))
    record.count(finished(2))
    record.count(finished(2, candidate=1, reason=FinishReason.LENGTH))
    assert record.reasons == {"stop": 1, "length": 1}
    assert record.texts == {(0, 0): ["a", ""], (0, 1): [""]}


def test_who_is_queued_has_left_until_something_else_is_known() -> None:
    record = Record()
    assert (record.outcome, record.was_queued) == (None, False)
    record.queue()
    assert (record.outcome, record.was_queued) == (Outcome.LEFT, True)
