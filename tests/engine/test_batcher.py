"""Batches of random jobs against the same jobs run alone, and a table model's numbers against float64."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.backend import Chunk
from app.engine.batcher import Batcher, Outcome
from app.engine.events import Delta, Event, Finished, FinishReason, PromptRead, Score, Started, Token
from app.engine.params import Bias, Job, SamplingParams
from app.engine.sampler import Sampler, generator
from app.engine.scheduler import Budget, Scheduler
from app.errors import GenerationFailed, NoRoom
from tests.engine.fakes import (
    END,
    MARK,
    N_VOCAB,
    OTHER_END,
    PROPERTY,
    FakeBackend,
    Poison,
    job,
    log_softmax,
    states,
)
from tests.engine.test_sequence import expected

WIDE = Budget(n_parallel=16, n_batch=1 << 12, n_rows=1 << 10, n_beside=1 << 12)


@dataclass
class Answer:
    """What one candidate came to."""

    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    reason: FinishReason | None = None
    n_sampled: int = 0
    sum_logprob: float = 0.0


@dataclass
class Result:
    """What one owner got: answers by job and candidate, prompt scores by job, or an error."""

    answers: dict[tuple[int, int], Answer] = field(default_factory=dict)
    scores: dict[int, list[Score]] = field(default_factory=dict)
    n_cached: dict[int, int] = field(default_factory=dict)
    started: list[int] = field(default_factory=list)
    error: GenerationFailed | None = None

    def take(self, outcome: Outcome) -> None:
        assert self.error is None, "something came after the error"
        match outcome:
            case GenerationFailed():
                self.error = outcome
            case Started(number):
                assert number not in self.scores
                self.started.append(number)
            case PromptRead(number, n_cached, scores):
                assert number not in self.scores, "its prompt was read twice"
                self.scores[number] = list(scores)
                self.n_cached[number] = n_cached
            case Delta() | Finished():
                self.say(outcome)

    def say(self, event: Delta | Finished) -> None:
        assert event.job in self.scores, "it spoke before its prompt was read"
        answer = self.answers.setdefault((event.job, event.candidate), Answer())
        assert answer.reason is None, "it spoke after its end"
        assert event.n_sampled >= answer.n_sampled
        answer.text += event.text
        answer.tokens += event.tokens
        answer.n_sampled = event.n_sampled
        if isinstance(event, Finished):
            answer.reason, answer.sum_logprob = event.reason, event.sum_logprob


class Play:
    """A batcher over a table, and what its owners got. The cells counted are held against those that are taken."""

    def __init__(
        self, backend: FakeBackend | None = None, budget: Budget = WIDE, *, keeps: bool = True, drafts: bool = False
    ) -> None:
        self.backend = backend or FakeBackend()
        self.budget = budget
        self.batcher = Batcher(self.backend, budget, keeps=keeps, drafts=drafts)
        self.keeps = keeps
        self.jobs: dict[Hashable, tuple[Job, ...]] = {}
        self.results: dict[Hashable, Result] = {}

    @property
    def scheduler(self) -> Scheduler:
        return self.batcher._scheduler

    def submit(self, owner: Hashable, *jobs: Job) -> None:
        self.jobs[owner] = jobs
        self.results[owner] = Result()
        self.batcher.submit(owner, jobs)

    def step(self) -> dict[Hashable, list[Outcome]]:
        has_work, n_decodes = not self.scheduler.is_idle, self.backend.n_decodes
        steps = self.batcher.step()
        assert self.backend.n_decodes > n_decodes or not has_work, "a step that read nothing"
        brought = dict(steps)
        assert len(brought) == len(steps), "an owner twice in one step"
        for owner, outcomes in steps:
            for outcome in outcomes:
                self.results[owner].take(outcome)
        assert self.batcher.n_cells_used == self.backend.n_used
        return brought

    def steps(self, most: int = 2000) -> Iterator[int]:
        """Numbers for steps to be taken, until there is nothing more to do."""
        for n in range(most):
            if self.batcher.is_idle:
                return
            yield n
        raise AssertionError("it never ends")

    def run(self, most: int = 2000) -> None:
        """Step until there is nothing more to do; what ended may stay resident."""
        for _ in self.steps(most):
            self.step()
        self.assert_at_rest()

    def drain(self, most: int = 2000) -> None:
        """As `run`, and see the residents off."""
        self.run(most)
        self.assert_vacant()

    def assert_at_rest(self) -> None:
        """Nothing runs, and only residents hold slots and cells: none where nothing is kept."""
        n_resident = len(self.scheduler.cache)
        assert self.batcher.n_running == 0
        assert self.scheduler.slots.n_idle == self.backend.limits.n_slots - n_resident
        assert self.backend.n_held_slots == n_resident
        if not self.keeps:
            assert n_resident == 0

    def assert_vacant(self) -> None:
        """Without its residents, nothing is held."""
        self.assert_at_rest()
        while self.scheduler.cache.evict():
            pass
        assert self.backend.n_used == self.batcher.n_cells_used == 0
        assert self.scheduler.slots.n_idle == self.backend.limits.n_slots


def alone(*jobs: Job) -> Result:
    """What the jobs come to, each in an engine of its own that keeps nothing."""
    result = Result()
    for number, work in enumerate(jobs):
        play = Play(keeps=False)
        play.submit("it", work)
        play.drain()
        found = play.results["it"]
        assert found.error is None
        result.answers |= {(number, k): answer for (_, k), answer in found.answers.items()}
        result.scores[number] = found.scores[0]
    return result


def same(found: Result, wanted: Result) -> None:
    """Equal in all but what the reading cost."""
    assert found.error is None
    assert found.scores == wanted.scores
    assert found.answers == wanted.answers


PROMPT_TOKENS = st.integers(0, N_VOCAB - 1)
SAMPLING = st.sampled_from(
    [
        SamplingParams(),
        SamplingParams(temperature=0),
        SamplingParams(temperature=0.5, top_p=0.8),
        SamplingParams(temperature=1.5, top_k=3, repetition_penalty=1.4),
        SamplingParams(min_p=0.1, frequency_penalty=1.0),
        SamplingParams(presence_penalty=-0.5, bias=Bias.of({3: 2.0, 4: -100, END: 1.0})),
        SamplingParams(temperature=0, frequency_penalty=1.0, repetition_penalty=0.7),
    ]
)
STOPS = st.sampled_from([(), (), ("b",), ("ab", "c a"), ("aba", "é", "x"), ("z y x", "bb")])


TRUNK = [4, 4, 1, 7, 20, 3, 9, 13, 0, 5]
PROMPTS = st.one_of(
    st.lists(PROMPT_TOKENS, min_size=1, max_size=14),
    st.builds(lambda n, tail: TRUNK[:n] + tail, st.integers(1, 10), st.lists(st.integers(0, 2), max_size=4)),
)
"""Some have nothing in common, others much."""


@st.composite
def random_jobs(draw: st.DrawFn) -> Job:
    prompt = draw(PROMPTS)
    max_tokens = draw(st.sampled_from([0, 1, 2, 3, 5, 9]))
    n_top = draw(st.sampled_from([None, 0, 2]))
    return job(
        prompt,
        max_tokens,
        n_candidates=draw(st.integers(1, 4)),
        sampling=draw(SAMPLING),
        seed=draw(st.integers(-3, 3)),
        stops=draw(STOPS),
        banned=draw(st.sampled_from([frozenset(), frozenset({END, 0})])),
        banned_early=draw(st.sampled_from([frozenset(), frozenset({END, OTHER_END})])),
        min_tokens=min(max_tokens, draw(st.sampled_from([0, 0, 2]))),
        n_top=n_top,
        score_from=None if n_top is None else draw(st.one_of(st.none(), st.integers(1, len(prompt)))),
        ranked=draw(st.booleans()),
        token_ids=draw(st.booleans()),
    )


@dataclass
class Mix:
    """Owners' jobs, when they come, and a small engine for them."""

    owners: list[list[Job]]
    arrivals: list[int]
    play: Play


@st.composite
def mixes(draw: st.DrawFn) -> Mix:
    owners = draw(st.lists(st.lists(random_jobs(), min_size=1, max_size=3), min_size=1, max_size=4))
    n_parallel = draw(st.integers(1, 4))
    n_batch = n_parallel + draw(st.sampled_from([0, 1, 4, 60]))
    n_rows = n_parallel + draw(st.sampled_from([0, 1, 2, 30]))
    most = max(8, *(len(work.prompt) + work.max_tokens for jobs in owners for work in jobs))
    backend = FakeBackend(
        n_cells=most + draw(st.sampled_from([0, 1, 4, 15, 500])),
        n_slots=n_parallel + draw(st.integers(0, 3)),
        n_batch=n_batch,
        n_rows=n_rows,
    )
    arrivals = [draw(st.sampled_from([0, 0, 1, 3, 8])) for _ in owners]
    budget = Budget(n_parallel, n_batch, n_rows, draw(st.integers(1, n_batch)), n_worth=draw(st.integers(1, 4)))
    return Mix(owners, arrivals, Play(backend, budget, drafts=draw(st.booleans())))


def start(mix: Mix, n_steps: int = 9) -> None:
    """Submit the jobs at their steps, and go on for some."""
    for n in range(n_steps):
        for owner, (jobs, arrival) in enumerate(zip(mix.owners, mix.arrivals, strict=True)):
            if arrival == n:
                mix.play.submit(owner, *jobs)
        mix.play.step()


@settings(PROPERTY, max_examples=70)
@given(mixes())
def test_a_job_in_a_crowd_comes_to_what_it_comes_to_alone(mix: Mix) -> None:
    start(mix)
    mix.play.drain()
    for owner, jobs in enumerate(mix.owners):
        same(mix.play.results[owner], alone(*jobs))


@settings(PROPERTY, max_examples=30)
@given(mixes(), st.integers(0, 12), st.integers(0, 3))
def test_a_cancelled_owner_leaves_nothing_and_disturbs_nobody(mix: Mix, n_steps: int, which: int) -> None:
    play, gone = mix.play, which % len(mix.owners)
    mix.arrivals = [0] * len(mix.owners)
    start(mix, 1)
    for _ in range(n_steps):
        play.step()
    play.batcher.cancel(gone)
    for _ in play.steps():
        assert gone not in play.step()
    play.assert_vacant()
    for owner, jobs in enumerate(mix.owners):
        if owner != gone:
            same(play.results[owner], alone(*jobs))


@settings(PROPERTY, max_examples=30)
@given(mixes(), st.integers(0, 12))
def test_when_all_are_cancelled_everything_is_free_at_once(mix: Mix, n_steps: int) -> None:
    mix.arrivals = [0] * len(mix.owners)
    start(mix, 1 + n_steps)
    for owner in range(len(mix.owners)):
        mix.play.batcher.cancel(owner)
    assert mix.play.batcher.is_idle
    mix.play.assert_vacant()
    assert all(not mix.play.backend.length(slot) for slot in range(mix.play.backend.limits.n_slots))


@settings(PROPERTY, max_examples=30)
@given(mixes(), st.sets(st.integers(0, 30), max_size=4), st.booleans())
def test_a_decode_that_fails_once_costs_nobody_anything_but_one_who_was_alone(
    mix: Mix, failing: set[int], leaves: bool
) -> None:
    play = mix.play
    alone_then: list[Hashable] = []

    def fail(number: int, chunks: list[Chunk]) -> None:
        if number in failing:
            if len(chunks) == 1:
                alone_then.extend(s.family.owner for s in play.scheduler.running if s.slot == chunks[0].slot)
            raise Poison(f"decode {number}")

    play.backend.fails, play.backend.leaves = fail, leaves
    start(mix)
    play.drain()
    play.assert_vacant()
    for owner, jobs in enumerate(mix.owners):
        if owner in alone_then:
            error = play.results[owner].error
            assert error is not None
            assert "Poison" in error.message
        else:
            same(play.results[owner], alone(*jobs))


@settings(PROPERTY, max_examples=30)
@given(mixes(), st.booleans())
def test_a_sequence_that_cannot_be_decoded_fails_its_owner_alone(mix: Mix, leaves: bool) -> None:
    """Nobody else has token 22."""
    play, unlike = mix.play, SamplingParams(bias=Bias.of({22: -100.0}))
    mix.owners = [
        [replace(work, sampling=unlike, prompt=np.minimum(work.prompt, 21)) for work in jobs] for jobs in mix.owners
    ]

    def fail(_: int, chunks: list[Chunk]) -> None:
        if any(22 in chunk.tokens for chunk in chunks):
            raise Poison("22")

    play.backend.fails, play.backend.leaves = fail, leaves
    play.submit("guilty", job([1, 22], 2))
    start(mix)
    play.drain()
    error = play.results["guilty"].error
    assert error is not None
    assert "22" in error.message
    play.assert_vacant()
    for owner, jobs in enumerate(mix.owners):
        same(play.results[owner], alone(*jobs))


@settings(PROPERTY, max_examples=40)
@given(mixes(), st.sets(st.integers(0, 30), max_size=6), st.sets(st.integers(0, 30), max_size=6), st.booleans())
def test_failures_and_lacks_of_room_in_any_order_cost_time_alone(
    mix: Mix, failing: set[int], lacking: set[int], leaves: bool
) -> None:
    def fail(number: int, chunks: list[Chunk]) -> None:
        if len(chunks) > 1 and number in lacking:
            raise NoRoom("surprise")
        if len(chunks) > 1 and number in failing:
            raise Poison

    mix.play.backend.fails, mix.play.backend.leaves = fail, leaves
    start(mix)
    mix.play.drain()
    mix.play.assert_vacant()
    for owner, jobs in enumerate(mix.owners):
        same(mix.play.results[owner], alone(*jobs))


def test_what_was_read_for_lack_of_room_in_one_half_is_not_read_again_in_the_other() -> None:
    """The batch fails, then its first half finds no room: the third waits again, and the others are read at once."""
    play = Play()
    jobs = [job([n, n + 1, n + 2], 4, end_tokens=frozenset()) for n in range(3)]

    def fail(number: int, _: list[Chunk]) -> None:
        if number == 0:
            raise Poison
        if number == 1:
            raise NoRoom("surprise")

    play.backend.fails = fail
    for owner, work in enumerate(jobs):
        play.submit(owner, work)
    play.drain()
    for owner, work in enumerate(jobs):
        same(play.results[owner], alone(work))


@pytest.mark.parametrize("can_cut", [True, False])
def test_when_every_decode_fails_all_who_were_read_fail_and_later_ones_are_served(can_cut: bool) -> None:
    play = Play(FakeBackend(can_cut=can_cut), Budget(2, 100, 10, 100))
    for owner in "abc":
        play.submit(owner, job([1, 2], 2, end_tokens=frozenset()))

    def fail(_number: int, _chunks: list[Chunk]) -> None:
        raise Poison

    play.backend.fails = fail
    play.step()
    assert [play.results[owner].error is None for owner in "abc"] == [False, False, True]
    play.backend.fails = lambda _n, _chunks: None
    play.drain()
    same(play.results["c"], alone(job([1, 2], 2, end_tokens=frozenset())))


def test_a_sampler_that_raises_for_a_crowd_still_draws_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play()
    jobs = [job([1, 2, n], 5, seed=n) for n in range(4)]
    sample = Sampler.sample

    def fussy(self: Sampler, rows: Any, wants: Any) -> Any:
        assert len(wants) == 1, "too many"
        return sample(self, rows, wants)

    monkeypatch.setattr(Sampler, "sample", fussy)
    for owner, work in enumerate(jobs):
        play.submit(owner, work)
    play.drain()
    for owner, work in enumerate(jobs):
        same(play.results[owner], alone(work))


@settings(PROPERTY, max_examples=30)
@given(mixes())
def test_nan_rows_fail_their_owner_alone(mix: Mix) -> None:
    """Whoever reads token 3 where a row is wanted fails; the others do not notice."""
    play = mix.play
    play.backend.nan_after = frozenset({3})
    start(mix)
    play.drain()
    for owner, jobs in enumerate(mix.owners):
        witness = Play()
        witness.backend.nan_after = frozenset({3})
        witness.submit(owner, *jobs)
        witness.drain()
        found, wanted = play.results[owner], witness.results[owner]
        assert (found.error is None) == (wanted.error is None)
        if found.error is None:
            same(found, wanted)
        else:
            assert "FloatingPointError" in found.error.message


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"sampling": SamplingParams(temperature=0)},
        {"max_tokens": 0, "score_from": 1, "n_top": 0},
        {"max_tokens": 1, "score_from": 2, "n_top": 0, "n_candidates": 3},
        {"sampling": SamplingParams(presence_penalty=1.0)},
    ],
)
def test_one_owners_nan_is_not_anothers(fields: dict[str, Any]) -> None:
    play = Play()
    play.backend.nan_after = frozenset({3})
    healthy = job([1, 2, 4], 3, n_top=1, banned=frozenset({3}))
    play.submit("ill", job([1, 3, 3], **({"max_tokens": 3} | fields)))
    play.submit("healthy", healthy)
    play.drain()
    assert play.results["ill"].error is not None
    same(play.results["healthy"], alone(healthy))


def test_a_token_that_cannot_be_told_fails_its_owner_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play()
    told = play.backend.piece

    def piece(token: int) -> bytes:
        if token == MARK:
            raise Poison
        return told(token)

    monkeypatch.setattr(play.backend, "piece", piece)
    healthy = job([1, 2, 4], 5, n_top=1, banned=frozenset({MARK}))
    play.submit("ill", job([1, 3], 3, n_candidates=2, sampling=SamplingParams(bias=Bias.of({MARK: 100}))))
    play.submit("healthy", healthy)
    play.drain()
    assert play.results["ill"].error is not None
    same(play.results["healthy"], alone(healthy))


def test_nothing_comes_behind_an_error_though_more_of_the_owners_jobs_were_read() -> None:
    """`Result.take` asserts it."""
    play = Play()
    play.backend.nan_after = frozenset({3})
    play.submit("ill", job([1, 3], 3), job([1, 2], 3), job([1, 2, 4], 0, score_from=1, n_top=0))
    play.drain()
    assert play.results["ill"].error is not None
    assert play.results["ill"].answers == {}


# Room


@settings(PROPERTY, max_examples=30)
@given(mixes(), st.sets(st.integers(0, 25), max_size=5))
def test_a_surprising_lack_of_room_costs_time_alone(mix: Mix, lacking: set[int]) -> None:
    def lack(number: int, chunks: list[Chunk]) -> None:
        if number in lacking and len(chunks) > 1:
            raise NoRoom("surprise")

    mix.play.backend.fails = lack
    start(mix)
    mix.play.drain()
    for owner, jobs in enumerate(mix.owners):
        same(mix.play.results[owner], alone(*jobs))


def test_a_backend_with_fewer_cells_than_it_said_still_serves_what_fits() -> None:
    """Each job fits by itself, so that each is answered in the end."""
    backend = FakeBackend(n_cells=100)
    backend.n_cells = 20
    play = Play(backend, Budget(4, 100, 10, 100))
    jobs = [job([1, 2, 3, 4, 5, 6, 7], 6, seed=seed) for seed in range(4)]
    for owner, work in enumerate(jobs):
        play.submit(owner, work)
    play.drain(500)
    for owner, work in enumerate(jobs):
        same(play.results[owner], alone(work))


def test_a_job_that_finds_no_room_even_alone_fails() -> None:
    backend = FakeBackend(n_cells=100)
    backend.n_cells = 5
    play = Play(backend)
    play.submit("big", job([1] * 8, 2))
    play.drain(50)
    assert play.results["big"].error is not None
    play.submit("small", job([1, 2], 2))
    play.drain(50)
    same(play.results["small"], alone(job([1, 2], 2)))


def test_a_job_starts_once_though_it_is_preempted_while_its_prompt_is_read() -> None:
    play = Play(FakeBackend(n_cells=24), Budget(2, 8, 2, 1))
    play.submit("first", job([1] * 4, 12, end_tokens=frozenset()))
    play.step()
    play.submit("second", job([2] * 18, 2, end_tokens=frozenset()))
    play.drain()
    assert sum(chunk.start == 0 for batch in play.backend.batches for chunk in batch) == 3, "nobody was preempted"
    assert [play.results[owner].started for owner in ("first", "second")] == [[0], [0]]


# Numbers


@pytest.mark.parametrize("n_rows", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("score_from", [1, 2, 9, 12])
@pytest.mark.parametrize("max_tokens", [0, 1])
def test_prompt_scores_are_the_tables_log_softmax(n_rows: int, score_from: int, max_tokens: int) -> None:
    prompt = [4, 4, 1, 7, 20, 3, 9, 13, 0, 5, 2, 22]
    play = Play(FakeBackend(n_rows=n_rows, n_batch=5), Budget(1, 5, n_rows, 5))
    play.submit("it", job(prompt, max_tokens, score_from=score_from, n_top=3))
    play.drain()
    rows = [log_softmax(play.backend.table[state]) for state in states(prompt)]
    scores = play.results["it"].scores[0]
    assert len(scores) == len(prompt) - score_from
    for position, score in enumerate(scores, score_from):
        row = rows[position - 1]
        order = np.argsort(-row, kind="stable")[:3].tolist()
        assert score.logprob == pytest.approx(row[prompt[position]], abs=2e-6)
        assert [token for token, _ in score.top] == order
        assert [logprob for _, logprob in score.top] == pytest.approx(row[order].tolist(), abs=2e-6)


@settings(PROPERTY, max_examples=50)
@given(
    st.lists(PROMPT_TOKENS, min_size=1, max_size=6),
    st.integers(1, 9),
    st.lists(st.text("abcé ", min_size=1, max_size=3), max_size=3),
)
def test_greedy_is_the_tables_path_with_the_models_own_scores(
    prompt: list[int], max_tokens: int, stops: list[str]
) -> None:
    result = alone(job(prompt, max_tokens, sampling=SamplingParams(temperature=0), stops=tuple(stops), n_top=1))
    logits, text, logprobs = FakeBackend().table, list(prompt), []
    for _ in range(max_tokens):
        row = logits[states(text)[-1]]
        text.append(int(row.argmax()))
        logprobs.append(float(log_softmax(row).max()))
    wanted = expected(text[len(prompt) :], stops, max_tokens)
    answer = result.answers[0, 0]
    assert (answer.text, answer.reason, answer.n_sampled) == (wanted.text, wanted.reason, wanted.n_sampled)
    assert [(token.id, token.offset) for token in answer.tokens] == wanted.tokens
    assert answer.sum_logprob == pytest.approx(sum(logprobs[: wanted.n_sampled]), abs=1e-5)
    for token, logprob in zip(answer.tokens, logprobs, strict=False):
        assert token.score is not None
        assert token.score.logprob == pytest.approx(logprob, abs=2e-6)
        assert token.score.top == [(token.id, token.score.logprob)]


def drawn(prompt: list[int], n: int, seed: int, candidate: int) -> list[int]:
    """n tokens by the inverse of the distribution function, one uniform a token, in float64."""
    logits, rng, text = FakeBackend().table, generator(seed & (2**64 - 1), candidate), list(prompt)
    for _ in range(n):
        edges = np.exp(log_softmax(logits[states(text)[-1]])).cumsum()
        text.append(int(edges.searchsorted(rng.random())))
    return text[len(prompt) :]


@pytest.mark.parametrize("seed", [0, 1, -7, 2**63 - 1, -(2**63)])
def test_each_candidate_draws_one_uniform_a_token_from_its_own_generator(seed: int) -> None:
    fields: dict[str, Any] = {"end_tokens": frozenset(), "token_ids": True, "seed": seed}
    result = alone(job([1, 2], 12, n_candidates=3, **fields), job([5], 12, n_candidates=2, **fields))
    for number, prompt, n in ((0, [1, 2], 3), (1, [5], 2)):
        for k in range(n):
            found = [token.id for token in result.answers[number, k].tokens]
            assert found == drawn(prompt, 12, seed, k)


def test_scores_are_raw_whatever_the_sampling() -> None:
    sampling = SamplingParams(0.5, 3, 0.9, 0.05, 1.5, 0.5, 0.5, Bias.of({3: 5.0, 4: -100, END: -100}))
    answer = alone(job([1, 2], 9, sampling=sampling, n_top=2, end_tokens=frozenset())).answers[0, 0]
    ids = [token.id for token in answer.tokens]
    rows = [log_softmax(FakeBackend().table[state]) for state in states([1, 2, *ids])[1:-1]]
    for token, row in zip(answer.tokens, rows, strict=True):
        assert token.score is not None
        assert token.score.logprob == pytest.approx(row[token.id], abs=2e-6)
        assert [i for i, _ in token.score.top] == np.argsort(-row, kind="stable")[:2].tolist()


def test_penalties_count_the_completion_and_repetition_the_prompt_too() -> None:
    sampling = SamplingParams(temperature=0, repetition_penalty=1.5, frequency_penalty=0.8, presence_penalty=0.4)
    prompt = [1, 2, 5, 6]
    answer = alone(job(prompt, 16, sampling=sampling, end_tokens=frozenset(), token_ids=True)).answers[0, 0]
    text = list(prompt)
    for _ in range(16):
        row = FakeBackend().table[states(text)[-1]].astype(np.float64)
        done = text[len(prompt) :]
        for token in set(text):
            row[token] = row[token] / 1.5 if row[token] > 0 else row[token] * 1.5
            row[token] -= 0.8 * done.count(token) + 0.4 * (token in done)
        text.append(int(row.argmax()))
    assert [token.id for token in answer.tokens] == text[len(prompt) :]


@given(st.integers(0, 50), st.integers(0, 6))
@settings(PROPERTY, max_examples=30)
def test_bans_hold_and_early_ones_for_min_tokens(seed: int, min_tokens: int) -> None:
    work = job(
        [1, 2], 8, seed=seed, min_tokens=min_tokens, banned=frozenset({0, 1}), token_ids=True,
        banned_early=frozenset({END, OTHER_END}), sampling=SamplingParams(bias=Bias.of({END: 4.0, MARK: 3.0})),
    )  # fmt: skip
    answer = alone(work).answers[0, 0]
    ids = [token.id for token in answer.tokens]
    assert answer.n_sampled == len(ids) >= min_tokens
    assert not {0, 1} & set(ids)
    if min_tokens == 0:
        return
    assert not {END, OTHER_END} & set(ids[:min_tokens])


@pytest.mark.parametrize("min_tokens", [0, 1, 2, 7])
def test_an_end_that_is_banned_early_comes_right_after_min_tokens(min_tokens: int) -> None:
    likely = SamplingParams(bias=Bias.of({END: 60.0}))
    answer = alone(job([1, 2], 9, min_tokens=min_tokens, banned_early=frozenset({END}), sampling=likely)).answers[0, 0]
    assert (answer.n_sampled, answer.reason) == (min_tokens + 1, FinishReason.STOP)


def test_an_unseeded_job_draws_afresh() -> None:
    work = job([1, 2], 12, seed=None, end_tokens=frozenset(), token_ids=True)
    found = {tuple(token.id for token in alone(work).answers[0, 0].tokens) for _ in range(3)}
    assert len(found) > 1


def test_a_sum_is_kept_for_ranking_without_reporting_scores() -> None:
    ranked = alone(job([1, 2], 5, ranked=True, n_candidates=2)).answers
    scored = alone(job([1, 2], 5, n_top=0, n_candidates=2)).answers
    plain = alone(job([1, 2], 5, n_candidates=2)).answers
    for k in range(2):
        assert ranked[0, k].sum_logprob == scored[0, k].sum_logprob != 0
        assert ranked[0, k].tokens == []
        assert plain[0, k].sum_logprob == 0


# Lengths and reading


def test_a_job_for_which_nothing_must_be_read_is_done_without_a_decode() -> None:
    play = Play()
    play.submit("it", job([1, 2], 0, n_candidates=2), job([1], 0, score_from=1, n_top=0))
    assert not play.batcher.is_idle
    play.drain()
    assert play.backend.n_decodes == 0
    answers = play.results["it"].answers
    assert [answers[key].reason for key in ((0, 0), (0, 1), (1, 0))] == [FinishReason.LENGTH] * 3
    assert play.results["it"].scores == {0: [], 1: []}


def test_scoring_alone_reads_all_but_the_last_token() -> None:
    play = Play()
    play.submit("it", job([1, 2, 3, 4], 0, score_from=1, n_top=0, n_candidates=3))
    play.drain()
    assert play.backend.n_read == 3
    assert [a.n_sampled for a in play.results["it"].answers.values()] == [0, 0, 0]


def test_a_prompt_is_read_once_for_all_its_candidates() -> None:
    play = Play()
    play.submit("it", job([1] * 9, 4, n_candidates=5, end_tokens=frozenset()))
    play.drain()
    assert play.backend.n_read == 9 + 5 * 3


def test_a_job_may_fill_the_cells_to_the_last() -> None:
    play = Play(FakeBackend(n_cells=12))
    play.submit("it", job([1] * 8, 4, end_tokens=frozenset()))
    play.drain()
    assert play.results["it"].answers[0, 0].n_sampled == 4


def test_events_of_a_job_come_in_their_order() -> None:
    play = Play()
    play.submit("it", job([1, 2], 1, n_top=0, score_from=1, end_tokens=frozenset(), sampling=SamplingParams(0.0)))
    events: list[Event] = [e for e in play.step()["it"] if not isinstance(e, GenerationFailed)]
    kinds = [type(event) for event in events]
    assert kinds[:2] == [Started, PromptRead]
    assert kinds[-1] is Finished


def test_a_step_brings_nothing_for_those_to_whom_nothing_happened() -> None:
    """An owner whose token changed nothing that may be shown is not woken."""
    play = Play()
    play.submit("it", job([1, 2], 9, sampling=SamplingParams(bias=Bias.of({MARK: 100}))))
    for _ in play.steps():
        for outcomes in play.step().values():
            assert outcomes, "an owner was woken for nothing"


def test_an_owner_may_come_again() -> None:
    play = Play()
    for _ in range(2):
        play.submit("it", job([1, 2], 3))
        play.run()
        same(play.results["it"], alone(job([1, 2], 3)))


def test_what_was_done_at_once_is_forgotten_with_its_owner() -> None:
    play = Play()
    play.submit("it", job([1, 2], 0))
    play.batcher.cancel("it")
    assert play.batcher.is_idle
    assert play.step() == {}


def test_cancelling_a_stranger_is_harmless() -> None:
    play = Play()
    play.submit("it", job([1, 2], 3))
    play.batcher.cancel("stranger")
    play.drain()
    assert play.results["it"].answers[0, 0].reason is not None


def test_decoding_goes_on_while_a_long_prompt_is_read() -> None:
    play = Play(FakeBackend(n_batch=8), Budget(2, 8, 2, 4))
    play.submit("talks", job([1], 20, end_tokens=frozenset()))
    play.step()
    play.submit("reads", job([2] * 30, 1, end_tokens=frozenset()))
    n_steps = 0
    while not play.results["reads"].answers and n_steps < 99:
        play.step()
        n_steps += 1
        assert len(play.backend.batches[-1][0].tokens) == 1
    assert n_steps == 8  # thirty tokens, four a step


# Guesses


def repetitive(n_states: int = 7) -> FakeBackend:
    """One whose likeliest path goes round and round, though not by much."""
    rows = np.random.default_rng(2).normal(0, 1, (n_states, N_VOCAB)).astype(np.float32)
    for state in range(n_states):
        rows[state, state] += 5
    return FakeBackend(logits=rows)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("fields", [{}, {"n_candidates": 3, "n_top": 2}, {"stops": ("ba",)}, {"min_tokens": 20}])
def test_with_guesses_the_same_is_said_in_fewer_steps(temperature: float, fields: dict[str, Any]) -> None:
    work = job([1, 2, 3] * 6, 60, sampling=SamplingParams(temperature, presence_penalty=0.01), **fields)
    plain, guessing = Play(repetitive()), Play(repetitive(), drafts=True)
    for play in (plain, guessing):
        play.submit("owner", work)
        play.drain()
    same(guessing.results["owner"], plain.results["owner"])
    assert guessing.backend.n_decodes < plain.backend.n_decodes or fields.get("stops")
    if temperature == 0.0 and not fields:
        assert guessing.backend.n_decodes <= plain.backend.n_decodes / 3


def test_what_is_sampled_with_guesses_follows_the_distribution() -> None:
    """Counted over seeds: the first tokens after a prompt that makes the guesser guess."""
    n, counts = 3000, np.zeros((2, N_VOCAB))
    backend = FakeBackend()
    play = Play(backend, drafts=True)
    for seed in range(n):
        play.submit(seed, job([4, 5, 4, 5, 4], 2, seed=seed, token_ids=True, end_tokens=frozenset()))
        play.drain()
        for place, token in enumerate(play.results[seed].answers[0, 0].tokens):
            counts[place, token.id] += 1
    first = np.exp(log_softmax(backend.table[states([4, 5, 4, 5, 4])[-1]]))
    after = [np.exp(log_softmax(backend.table[states([4, 5, 4, 5, 4, token])[-1]])) for token in range(N_VOCAB)]
    for found, expected_shares in ((counts[0], first), (counts[1], first @ np.array(after))):
        expected_counts = expected_shares * n
        chi_square = float(((found - expected_counts) ** 2 / expected_counts).sum())
        assert chi_square < 49.7  # 23 degrees of freedom exceed it once in a thousand


def test_a_model_without_parts_is_not_guessed_for() -> None:
    play = Play(FakeBackend(can_cut=False), drafts=True)
    play.submit("owner", job([1, 2, 3] * 6, 20, end_tokens=frozenset()))
    play.drain()
    assert all(len(chunk.tokens) == 1 for batch in play.backend.batches[1:] for chunk in batch)
