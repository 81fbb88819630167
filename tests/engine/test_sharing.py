"""Whether it shows that what was read is shared: outcomes must not, the number of tokens read must."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine import scheduler
from app.engine.params import Job
from app.engine.scheduler import Budget
from tests.engine.fakes import N_VOCAB, PROPERTY, FakeBackend, job
from tests.engine.test_batcher import SAMPLING, STOPS, Play, alone, same

TRUNK = [(k * k + 3 * k) % N_VOCAB for k in range(60)]
BRANCH = [(k * 5 + 1) % N_VOCAB for k in range(30)]
TAILS = st.lists(st.integers(0, 2), max_size=5)
PROMPTS = st.one_of(
    st.builds(lambda n, tail: TRUNK[:n] + tail, st.integers(1, 60), TAILS),
    st.builds(lambda n, m, tail: TRUNK[:n] + BRANCH[:m] + tail, st.sampled_from([8, 40]), st.integers(0, 30), TAILS),
    st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=9),
)


@st.composite
def kindred_jobs(draw: st.DrawFn) -> Job:
    """Jobs that begin alike, in all the ways in which they may be read and scored."""
    prompt = draw(PROMPTS)
    n_top = draw(st.sampled_from([None, 0, 1, 3]))
    firsts = st.one_of(st.none(), st.just(1), st.integers(1, len(prompt)))
    return job(
        prompt,
        draw(st.sampled_from([0, 1, 2, 4, 8])),
        n_candidates=draw(st.sampled_from([1, 1, 1, 3])),
        sampling=draw(SAMPLING),
        seed=draw(st.integers(0, 1)),
        stops=draw(STOPS),
        n_top=n_top,
        score_from=None if n_top is None else draw(firsts),
        ranked=draw(st.booleans()),
        token_ids=True,
    )


@dataclass
class Mix:
    """Owners' jobs; before which steps they come and, for some, go."""

    owners: list[list[Job]]
    arrivals: list[int]
    departures: list[int | None]
    worth_waiting: int
    budget: Budget
    n_cells: int
    n_slots: int

    def play(self, *, keeps: bool = True, can_cut: bool = True, is_roomy: bool = False) -> Play:
        """Play it to its end, which it has to come to."""
        budget = self.budget
        n_cells, n_slots = (1 << 16, 128) if is_roomy else (self.n_cells, self.n_slots)
        backend = FakeBackend(n_cells, n_slots, budget.n_batch, budget.n_rows, can_cut=can_cut)
        play = Play(backend, budget, keeps=keeps)
        last = max(n for n in [*self.arrivals, *self.departures] if n is not None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scheduler, "WORTH_WAITING", self.worth_waiting)
            for n in range(last + 1):
                self.come_and_go(play, n)
                play.step()
            play.run(most=4000)
        return play

    def come_and_go(self, play: Play, n: int) -> None:
        for owner, jobs in enumerate(self.owners):
            if self.arrivals[owner] == n:
                play.submit(owner, *jobs)
            if self.departures[owner] == n:
                play.batcher.cancel(owner)
                play.results.pop(owner, None)

    @property
    def staying(self) -> Iterable[tuple[Hashable, list[Job]]]:
        departed = zip(self.arrivals, self.departures, strict=True)
        leaves = [gone is not None and gone >= came for came, gone in departed]
        return [(owner, jobs) for owner, jobs in enumerate(self.owners) if not leaves[owner]]


@st.composite
def mixes(draw: st.DrawFn) -> Mix:
    owners = draw(st.lists(st.lists(kindred_jobs(), min_size=1, max_size=4), min_size=1, max_size=5))
    n_parallel = draw(st.integers(1, 5))
    n_batch = n_parallel + draw(st.sampled_from([0, 3, 20, 100]))
    n_rows = n_parallel + draw(st.sampled_from([0, 2, 30]))
    most = max(len(work.prompt) + work.max_tokens for jobs in owners for work in jobs)
    return Mix(
        owners,
        arrivals=[draw(st.sampled_from([0, 0, 2, 9, 30])) for _ in owners],
        departures=[draw(st.sampled_from([None, None, None, 1, 4, 12])) for _ in owners],
        worth_waiting=draw(st.sampled_from([1, 5, 32])),
        budget=Budget(n_parallel, n_batch, n_rows, draw(st.integers(1, n_batch))),
        n_cells=most + draw(st.sampled_from([0, 1, 6, 40, 200])),
        n_slots=n_parallel + draw(st.sampled_from([0, 1, 4])),
    )


def assert_each_is_as_alone(mix: Mix, play: Play) -> None:
    for owner, jobs in mix.staying:
        same(play.results[owner], alone(*jobs))


def assert_cached_is_less_than_the_prompt(mix: Mix, play: Play) -> None:
    for owner, jobs in mix.staying:
        for number, n_cached in play.results[owner].n_cached.items():
            assert 0 <= n_cached <= max(jobs[number].n_needed - 1, 0)


@settings(PROPERTY, max_examples=60)
@given(mixes(), st.booleans())
def test_whoever_shares_comes_to_what_it_comes_to_alone(mix: Mix, can_cut: bool) -> None:
    play = mix.play(can_cut=can_cut)
    assert_each_is_as_alone(mix, play)
    assert_cached_is_less_than_the_prompt(mix, play)
    play.assert_vacant()


@settings(PROPERTY, max_examples=25)
@given(mixes(), st.booleans())
def test_where_nothing_is_kept_nothing_changes_and_nothing_stays(mix: Mix, can_cut: bool) -> None:
    play = mix.play(keeps=False, can_cut=can_cut)
    assert_each_is_as_alone(mix, play)
    assert play.backend.n_used == len(play.scheduler.cache) == 0


def n_generated_read(play: Play) -> int:
    """Sampled tokens that were read: all but the last of each candidate."""
    answers = (answer for result in play.results.values() for answer in result.answers.values())
    return sum(max(answer.n_sampled - 1, 0) for answer in answers)


@settings(PROPERTY, max_examples=40)
@given(mixes())
def test_what_is_not_read_is_what_is_called_cached(mix: Mix) -> None:
    """With room for all, so that nothing is read twice."""
    mix.departures = [None] * len(mix.owners)
    play = mix.play(is_roomy=True)
    needed = [work.n_needed for jobs in mix.owners for work in jobs]
    cached = [n for result in play.results.values() for n in result.n_cached.values()]
    assert len(cached) == len(needed)
    assert play.backend.n_read == sum(needed) - sum(cached) + n_generated_read(play)
    assert play.scheduler.n_preempted == 0


@settings(PROPERTY, max_examples=25)
@given(mixes())
def test_a_second_time_a_prompt_costs_one_token(mix: Mix) -> None:
    mix.departures = [None] * len(mix.owners)
    play = mix.play(is_roomy=True)
    for owner, jobs in enumerate(mix.owners):
        for number, work in enumerate(jobs):
            play.submit(("again", owner, number), work)
            play.run()
            found = play.results["again", owner, number]
            assert found.n_cached[0] == max(work.n_needed - 1, 0)
            same(found, alone(work))


# Beginnings that many share


QUESTIONS = [[k, 2, k] for k in range(8)]


@pytest.mark.parametrize("n_batch", [16, 61, 500])
@pytest.mark.parametrize("n_parallel", [1, 3, 16])
@pytest.mark.parametrize("score_from", [None, 1])
def test_a_beginning_of_many_is_read_once(n_parallel: int, n_batch: int, score_from: int | None) -> None:
    play = Play(FakeBackend(n_batch=n_batch), Budget(n_parallel, n_batch, 16, n_batch))
    jobs = [
        job(TRUNK + question, 0 if score_from else 1, score_from=score_from, n_top=2 if score_from else None)
        for question in QUESTIONS
    ]
    play.submit("it", *jobs)
    play.run()
    # Scoring does not read the last token, but reads the last shared one again, for the row that scores what differs.
    assert play.backend.n_read == len(TRUNK) + 8 * 3 - bool(score_from)
    same(play.results["it"], alone(*jobs))


def test_options_share_their_question_and_questions_their_beginning() -> None:
    """The lists of a multiple-choice benchmark: each token is read once, save at the forks."""
    play = Play(FakeBackend(n_batch=32), Budget(8, 32, 16, 32))
    questions = [[(k * q + q) % N_VOCAB for k in range(40)] for q in range(2, 6)]
    jobs = [
        job([*TRUNK, *question, option, option], 0, score_from=1, n_top=0)
        for question in questions
        for option in range(4)
    ]
    play.submit("it", *jobs)
    play.run()
    assert play.backend.n_read <= len(TRUNK) + 4 * (40 + 2) + 16 * 3
    same(play.results["it"], alone(*jobs))


def test_a_conversation_is_read_only_from_where_it_went_on() -> None:
    play = Play()
    said, n_read = [1, 2, 3], 0
    for turn in range(4):
        play.submit(turn, job(said, 6, token_ids=True, end_tokens=frozenset()))
        play.run()
        said = [*said, *(token.id for token in play.results[turn].answers[0, 0].tokens), 4, 5]
        n_read = play.backend.n_read
    # Each turn reads its five sampled tokens, the sixth of the turn before and the two that the other one said.
    assert n_read == 3 + 5 + 3 * (1 + 2 + 5)


def test_scores_with_more_top_entries_are_read_anew_and_serve_from_then_on() -> None:
    play = Play()
    for n_top, n_read in [(1, 7), (3, 7), (2, 1), (3, 1)]:
        before = play.backend.n_read
        work = job(TRUNK[:8], 0, score_from=1, n_top=n_top)
        play.submit(n_top, work)
        play.run()
        assert play.backend.n_read - before == n_read
        same(play.results[n_top], alone(work))


def test_a_prompt_is_read_once_for_candidates_that_wait_while_others_take_the_slots() -> None:
    play = Play(FakeBackend(n_slots=6), Budget(2, 100, 10, 100))
    play.submit("many", job(TRUNK, 5, n_candidates=8, end_tokens=frozenset()))
    play.submit("other", job([5, 6], 9, end_tokens=frozenset()))
    play.run()
    assert play.backend.n_read == len(TRUNK) + 8 * 4 + 2 + 8


@pytest.mark.parametrize("n_rounds", [1, 3])
def test_where_forks_are_whole_a_prompt_is_read_once_for_its_candidates(n_rounds: int) -> None:
    play = Play(FakeBackend(can_cut=False), Budget(2, 100, 10, 100))
    for n in range(n_rounds):
        play.submit(n, job(TRUNK, 5, n_candidates=4, end_tokens=frozenset()))
        play.run()
    assert play.backend.n_read == n_rounds * (len(TRUNK) + 4 * 4)
    assert set(play.backend.forks) == {len(TRUNK)}
    play.assert_vacant()


def test_ended_sequences_hold_no_more_cells_than_they_may_and_fewer_the_more_run() -> None:
    play = Play(FakeBackend(), Budget(3, 100, 10, 100, n_resident=60))
    for n in range(6):
        play.submit(n, job([n, *BRANCH[:24]], 1))
        play.run()
        assert play.backend.n_used <= 60
    assert play.backend.n_used == 50, "two of 25 tokens fit"
    play.submit("long", job(TRUNK[:5], 30, end_tokens=frozenset()))
    play.step()
    held = play.scheduler.slots.n_held(s.slot for s in play.scheduler.running if s.slot is not None)
    assert play.backend.n_used - held <= 30
    play.run()


def test_without_a_cache_the_prompts_of_one_owner_share_and_nothing_stays() -> None:
    play = Play(FakeBackend(), Budget(1, 100, 10, 100), keeps=False)
    for owner in ("first", "second"):
        before = play.backend.n_read
        play.submit(owner, *(job([*TRUNK, tail], 1) for tail in (1, 2, 3)))
        play.run()
        assert play.backend.n_read - before == len(TRUNK) + 3
        assert play.backend.n_used == 0
