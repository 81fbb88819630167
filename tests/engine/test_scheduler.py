"""The scheduler, played without a model: rows are counted, tokens are made up."""

from collections.abc import Sequence as Ordered
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.events import FinishReason, Score
from app.engine.params import Job
from app.engine.scheduler import WORTH_WAITING, Budget, Piece, Scheduler
from app.engine.sequence import Family, Sequence
from app.engine.slots import Slots
from tests.engine.fakes import PROPERTY, job

WIDE = Budget(n_parallel=8, n_batch=512, n_rows=64, n_beside=128)


class Cells:
    """A memory that counts nothing: `Slots` does."""

    def fork(self, source: int, target: int, n_tokens: int) -> None: ...

    def cut(self, slot: int, n_tokens: int) -> None: ...

    def drop(self, slot: int) -> None: ...


class Play:
    """A scheduler and what a batcher does with its plans. Every plan is held against the budget."""

    def __init__(
        self,
        budget: Budget = WIDE,
        n_cells: int = 1000,
        n_slots: int = 16,
        *,
        can_cut: bool = True,
        keeps: bool = True,
    ) -> None:
        self.budget = budget
        self.slots = Slots(Cells(), n_slots, n_cells)
        self.n_slots = n_slots
        self.keeps = keeps
        self.scheduler = Scheduler(self.slots, budget, can_cut=can_cut, keeps=keeps)
        self.admitted: list[Sequence] = []
        self.n_tokens_read = 0

    def enqueue(self, work: Job, owner: str = "owner") -> Sequence:
        leader = Sequence(Family(owner, 0, work, 7), 0)
        self.scheduler.enqueue(leader)
        return leader

    def plan(self) -> list[Piece]:
        self.admitted += self.scheduler.admit()
        assert len(self.scheduler.running) <= self.budget.n_parallel
        pieces = self.scheduler.plan()
        self.check(pieces)
        return pieces

    def check(self, pieces: list[Piece]) -> None:
        decoding = [s for s in self.scheduler.running if s.n_pending == 1]
        sequences = [piece.sequence for piece in pieces]
        assert len(set(map(id, sequences))) == len(pieces)
        assert all(sequence in self.scheduler.running for sequence in sequences)
        assert sum(piece.n_tokens for piece in pieces) <= min(self.budget.n_batch, self.slots.n_free)
        assert sum(piece.n_rows for piece in pieces) <= self.budget.n_rows
        assert all(1 <= piece.n_tokens <= piece.sequence.n_pending for piece in pieces)
        assert all(0 <= piece.n_rows <= piece.n_tokens for piece in pieces)
        assert all(any(s is other for other in sequences) for s in decoding), "a running sequence got no token"
        if decoding:
            beside = [piece.n_tokens for piece in pieces if all(piece.sequence is not s for s in decoding)]
            assert sum(beside) <= self.budget.n_beside * (len(self.scheduler.running) - len(decoding))

    def step(self) -> list[Piece]:
        pieces = self.plan()
        starts = []
        for piece in pieces:
            sequence = piece.sequence
            text = [*sequence.job.prompt.tolist(), *sequence.generated]
            start, slot, tokens, n_rows = sequence.n_computed, *piece.chunk[:1], *piece.chunk[2:]
            assert slot == sequence.slot
            assert tokens == text[start : start + piece.n_tokens]
            assert (piece.chunk.start, n_rows) == (start, piece.n_rows)
            starts.append(start)
            self.n_tokens_read += piece.n_tokens
            self.scheduler.advance(piece)
        for piece, start in zip(pieces, starts, strict=True):
            self.take(piece, start + piece.n_tokens - piece.n_rows)
        return pieces

    def take(self, piece: Piece, at: int) -> None:
        """Use the rows of a piece, the first of which is that of position `at`; none is lacking and none is left."""
        sequence = piece.sequence
        family, work = sequence.family, sequence.job
        n_rows = piece.n_rows
        while n_rows and work.score_from is not None and work.score_from + len(family.scores) < len(work.prompt):
            assert at == work.score_from + len(family.scores) - 1, "the row of another position"
            family.scores.append(Score(float(at + 1), []))
            at, n_rows = at + 1, n_rows - 1
        if sequence.n_pending:
            assert n_rows == 0, "a row that nobody needs"
            return
        if not work.max_tokens:
            assert n_rows == 0
            sequence.finish(FinishReason.LENGTH)
            self.end(sequence)
            return
        assert n_rows == 1, "no row to draw from"
        assert at == len(work.prompt) + len(sequence.generated) - 1
        siblings = [] if family.is_read else [Sequence(family, k) for k in range(1, work.n_candidates)]
        for each in (sequence, *siblings):
            each.append(len(each.generated), None, b"x")
        if not family.is_read:
            family.is_read = True
            self.scheduler.branch(sequence, [s for s in siblings if not s.is_finished])
        if sequence.is_finished:
            self.end(sequence)

    def end(self, sequence: Sequence) -> None:
        """Retire a sequence; every score that it wants belongs to its token."""
        work, scores = sequence.job, sequence.family.scores
        wanted = range(len(work.prompt) if work.score_from is None else work.score_from, len(work.prompt))
        assert [score.logprob for score in scores] == list(wanted)
        self.scheduler.retire(sequence)

    def run(self, most: int = 3000) -> None:
        """Step until all have ended; residents stay."""
        for _ in range(most):
            if self.scheduler.is_idle:
                break
            assert self.step(), "a step without a piece"
        assert self.scheduler.is_idle, "it never ends"
        self.assert_at_rest()

    def drain(self, most: int = 3000) -> None:
        """As `run`, and see the residents off."""
        self.run(most)
        self.assert_vacant()

    def assert_at_rest(self) -> None:
        """Only residents hold slots; none where nothing is kept."""
        n_resident = len(self.scheduler.cache)
        assert not self.scheduler.running
        assert self.slots.n_idle == self.n_slots - n_resident
        assert self.keeps or not n_resident

    def assert_vacant(self) -> None:
        """Without its residents, nothing is held."""
        self.assert_at_rest()
        while self.scheduler.cache.evict():
            pass
        assert (self.slots.n_used, self.slots.n_idle) == (0, self.n_slots)


@dataclass(frozen=True)
class Wish:
    n_prompt: int
    max_tokens: int
    n_candidates: int
    score_from: int | None

    @property
    def job(self) -> Job:
        return job(
            list(range(self.n_prompt)),
            self.max_tokens,
            n_candidates=self.n_candidates,
            score_from=self.score_from,
            n_top=0 if self.score_from else None,
        )


@st.composite
def wishes(draw: st.DrawFn) -> Wish:
    n_prompt = draw(st.integers(1, 14))
    score_from = draw(st.one_of(st.none(), st.integers(1, n_prompt)))
    least = 1 if score_from in (None, n_prompt) else 0
    return Wish(n_prompt, draw(st.integers(least, 5)), draw(st.integers(1, 4)), score_from)


@st.composite
def plays(draw: st.DrawFn) -> tuple[Play, list[Wish]]:
    work = draw(st.lists(wishes(), min_size=1, max_size=6))
    n_parallel = draw(st.integers(1, 4))
    n_batch = n_parallel + draw(st.sampled_from([0, 1, 3, 40]))
    n_rows = n_parallel + draw(st.sampled_from([0, 1, 30]))
    budget = Budget(n_parallel, n_batch, n_rows, draw(st.integers(1, n_batch)))
    n_cells = max(w.n_prompt + w.max_tokens for w in work) + draw(st.sampled_from([0, 1, 5, 20, 300]))
    n_slots = n_parallel + draw(st.integers(0, 3))
    return Play(budget, n_cells, n_slots, can_cut=draw(st.booleans()), keeps=draw(st.booleans())), work


@settings(PROPERTY, max_examples=80)
@given(plays())
def test_every_plan_keeps_to_its_bounds_and_every_job_ends(given_play: tuple[Play, list[Wish]]) -> None:
    play, work = given_play
    for wish in work:
        play.enqueue(wish.job)
    play.drain()


@settings(PROPERTY, max_examples=30)
@given(plays(), st.integers(0, 12), st.integers(0, 2))
def test_an_owner_who_is_discarded_leaves_nothing(
    given_play: tuple[Play, list[Wish]], n_steps: int, which: int
) -> None:
    play, work = given_play
    for i, wish in enumerate(work):
        play.enqueue(wish.job, owner=f"owner {i % 3}")
    for _ in range(n_steps):
        if not play.scheduler.is_idle:
            play.step()
    play.scheduler.discard(f"owner {which}")
    left = [*play.scheduler.running, *play.scheduler.waiting]
    assert all(s.family.owner != f"owner {which}" for s in left)
    if not left:
        play.assert_at_rest()
    play.drain()


def leaders(play: Play) -> list[Sequence]:
    seen: list[Sequence] = []
    for sequence in play.admitted:
        if all(sequence is not other for other in seen):
            seen.append(sequence)
    return seen


@settings(PROPERTY, max_examples=30)
@given(plays())
def test_jobs_are_admitted_in_the_order_in_which_they_came(given_play: tuple[Play, list[Wish]]) -> None:
    play, work = given_play
    queued = [play.enqueue(wish.job) for wish in work]
    play.drain()
    assert [s for s in leaders(play) if not s.candidate] == queued


# Admission


def admitted(play: Play) -> list[Sequence]:
    return play.scheduler.admit()


def test_no_more_than_n_parallel_run() -> None:
    play = Play(Budget(2, 512, 64, 128))
    queued = [play.enqueue(job([1, 2], 3)) for _ in range(3)]
    assert admitted(play) == queued[:2]
    assert admitted(play) == []
    assert list(play.scheduler.waiting) == queued[2:]


def test_admission_leaves_room_for_what_those_that_run_have_yet_to_read() -> None:
    play = Play(n_cells=20)
    queued = [play.enqueue(job([k] * 10, 3)) for k in range(3)]
    assert admitted(play) == queued[:2]


def test_the_head_of_the_line_is_not_overtaken() -> None:
    play = Play(n_cells=20)
    first = play.enqueue(job([1] * 12, 3))
    play.enqueue(job([2] * 12, 3))
    play.enqueue(job([3], 1))
    assert admitted(play) == [first]
    assert play.step()
    assert admitted(play) == []


def test_a_slot_is_needed_to_run() -> None:
    play = Play(n_slots=1)
    first, second = play.enqueue(job([1], 1)), play.enqueue(job([1], 1))
    assert admitted(play) == [first]
    play.step()
    assert admitted(play) == [second]


# Plans


def sizes(pieces: Ordered[Piece]) -> list[tuple[int, int]]:
    return [(piece.n_tokens, piece.n_rows) for piece in pieces]


def test_a_prompt_is_read_in_pieces_of_n_batch_and_only_its_end_wants_a_row() -> None:
    play = Play(Budget(2, 4, 2, 4))
    play.enqueue(job([1] * 10, 2))
    assert [sizes(play.step()) for _ in range(4)] == [[(4, 0)], [(4, 0)], [(2, 1)], [(1, 1)]]


def test_beside_those_that_decode_a_prompt_is_read_by_n_beside() -> None:
    play = Play(Budget(3, 8, 3, 3))
    play.enqueue(job([1], 9))
    play.step()
    play.enqueue(job([2] * 7, 2))
    assert [sizes(play.step()) for _ in range(4)] == [
        [(1, 1), (3, 0)],
        [(1, 1), (3, 0)],
        [(1, 1), (1, 1)],
        [(1, 1), (1, 1)],
    ]


def test_the_more_prompts_are_read_the_more_is_read_in_a_step_beside_those_that_decode() -> None:
    play = Play(Budget(3, 8, 3, 3))
    play.enqueue(job([1], 9))
    play.step()
    play.enqueue(job([2] * 9, 2))
    play.enqueue(job([3] * 2, 2))
    assert [sizes(play.step()) for _ in range(3)] == [
        [(1, 1), (6, 0)],
        [(1, 1), (3, 1), (2, 1)],
        [(1, 1), (1, 1), (1, 1)],
    ]


def test_guesses_wait_while_a_prompt_is_read() -> None:
    play = Play(Budget(2, 8, 8, 8))
    first = play.enqueue(job([1], 9))
    play.step()
    first.draft = [5, 5, 5, 5, 5, 5, 5]
    play.enqueue(job([2] * 7, 2))
    assert sizes(play.plan()) == [(1, 1), (7, 1)]
    assert first.draft == []


def test_prompts_share_a_step_in_the_order_of_admission() -> None:
    play = Play(Budget(3, 8, 3, 8))
    for n in (5, 5, 5):
        play.enqueue(job([1] * n, 2))
    assert sizes(play.step()) == [(5, 1), (3, 0)]


def test_a_prompt_is_scored_in_pieces_of_n_rows() -> None:
    play = Play(Budget(1, 100, 4, 100))
    play.enqueue(job([1] * 12, 0, score_from=3, n_top=0))
    # Rows 2 to 10 score tokens 3 to 11; what is before row 2 comes along.
    assert [sizes(play.step()) for _ in range(3)] == [[(6, 4)], [(4, 4)], [(1, 1)]]
    play.drain()


def test_the_row_to_draw_from_follows_the_scored_ones() -> None:
    play = Play(Budget(1, 100, 8, 100))
    play.enqueue(job([1] * 5, 2, score_from=2, n_top=0))
    assert sizes(play.step()) == [(5, 4)]


def test_rows_are_first_given_to_those_that_decode() -> None:
    play = Play(Budget(2, 100, 3, 100))
    play.enqueue(job([1], 9))
    play.step()
    play.enqueue(job([1] * 9, 0, score_from=1, n_top=0))
    assert sizes(play.step()) == [(1, 1), (2, 2)]


def test_scores_go_on_where_a_preemption_left_them() -> None:
    play = Play(Budget(2, 100, 4, 100), n_cells=30)
    play.enqueue(job([1] * 3, 9))
    play.enqueue(job([2] * 20, 0, score_from=5, n_top=0))
    play.step()
    play.step()
    assert play.scheduler.make_room()
    (scoring,) = play.scheduler.waiting
    n_scored = len(scoring.family.scores)
    assert n_scored > 0
    play.scheduler.admit()
    assert sizes(play.step()) == [(1, 1), (5 + n_scored - 1 + 3, 3)]
    play.drain()
    assert len(scoring.family.scores) == 15


def test_a_plan_keeps_to_n_batch_where_more_sequences_decode() -> None:
    play = Play(Budget(n_parallel=4, n_batch=2, n_rows=4, n_beside=2))
    for _ in range(4):
        play.enqueue(job([1], 4))
    for _ in range(40):
        play.admitted += play.scheduler.admit()
        pieces = play.scheduler.plan()
        assert sum(piece.n_tokens for piece in pieces) <= 2
        assert all(piece.n_tokens > 0 for piece in pieces)
        for piece in pieces:
            start = piece.sequence.n_computed
            play.scheduler.advance(piece)
            play.take(piece, start)
    assert play.scheduler.is_idle


# Forks


def test_a_prompt_is_read_once_for_all_its_candidates() -> None:
    play = Play()
    play.enqueue(job([1] * 10, 3, n_candidates=4))
    play.drain()
    # The last token of each candidate is drawn, not read.
    assert play.n_tokens_read == 10 + 4 * 2


def test_siblings_go_to_the_head_of_the_line_in_their_order() -> None:
    play = Play(Budget(1, 512, 64, 128))
    first = play.enqueue(job([1] * 3, 2, n_candidates=3))
    other = play.enqueue(job([1], 1))
    play.step()
    assert [(s.family is first.family, s.candidate) for s in play.scheduler.waiting] == [
        (True, 1), (True, 2), (False, 0),
    ]  # fmt: skip
    play.drain()
    assert leaders(play)[-1] is other


def test_siblings_that_wait_cost_no_slot_and_those_that_run_no_prompt() -> None:
    play = Play(Budget(2, 512, 64, 128), n_slots=4)
    play.enqueue(job([1] * 10, 5, n_candidates=3))
    play.step()
    assert (play.slots.n_used, play.slots.n_idle) == (10, 3)
    play.step()  # the second candidate runs, the third waits
    assert (play.slots.n_used, play.slots.n_idle) == (12, 2)
    play.drain()
    assert play.n_tokens_read == 10 + 3 * 4


def test_siblings_fork_from_a_leader_that_has_ended() -> None:
    play = Play(Budget(1, 512, 64, 128), n_slots=2)
    play.enqueue(job([1] * 10, 2, n_candidates=3))
    play.drain()
    assert play.n_tokens_read == 10 + 3


def test_siblings_fork_from_one_another_when_their_leader_is_gone() -> None:
    play = Play(Budget(2, 512, 64, 128))
    leader = play.enqueue(job([1] * 10, 9, n_candidates=3))
    play.step()
    play.step()
    assert [s.candidate for s in play.scheduler.running] == [0, 1]
    play.scheduler.remove(leader)
    play.drain()
    assert play.n_tokens_read == 10 + 1 + 8 + 8


def test_candidates_that_end_with_their_first_token_leave_the_prompt_alone() -> None:
    play = Play()
    play.enqueue(job([1] * 10, 1, n_candidates=3))
    play.step()
    assert play.scheduler.is_idle
    assert (play.slots.n_used, play.slots.n_idle) == (10, 15)
    play.assert_vacant()


@pytest.mark.parametrize("can_cut", [True, False])
def test_without_a_slot_beside_the_leaders_siblings_read_their_prompt_again(can_cut: bool) -> None:
    play = Play(Budget(1, 512, 64, 128), n_slots=1, can_cut=can_cut)
    play.enqueue(job([1] * 10, 2, n_candidates=2))
    play.drain()
    assert play.n_tokens_read == 10 + 1 + 11


def test_a_leader_that_has_ended_gives_its_cells_to_those_before_its_siblings() -> None:
    play = Play(Budget(1, 512, 64, 128), n_cells=14, n_slots=3)
    play.enqueue(job([1] * 8, 2, n_candidates=3))
    play.step()
    other = play.enqueue(job([2] * 12, 2))
    play.scheduler.waiting.remove(other)
    play.scheduler.waiting.appendleft(other)  # as after a preemption
    play.drain()
    # The second candidate reads the prompt again, with the token that it has drawn, and the third forks from it.
    assert play.n_tokens_read == 9 + 13 + 9 + 1


def test_the_cells_of_a_discarded_family_are_free() -> None:
    play = Play(Budget(2, 512, 64, 128), n_slots=3)
    play.enqueue(job([1] * 8, 4, n_candidates=3))
    play.step()
    play.step()
    assert play.slots.n_used > 0
    play.scheduler.discard("owner")
    assert (play.slots.n_used, play.slots.n_idle, play.scheduler.is_idle) == (0, 3, True)


# Backends that cannot cut


def test_where_forks_are_whole_the_prompt_is_kept_apart_for_the_siblings() -> None:
    play = Play(Budget(2, 512, 64, 128), n_slots=4, can_cut=False)
    play.enqueue(job([1] * 10, 5, n_candidates=3))
    play.step()
    assert (len(play.scheduler.cache), play.slots.n_used, play.slots.n_idle) == (1, 10, 2)
    play.drain()
    assert play.n_tokens_read == 10 + 3 * 4


def test_where_forks_are_whole_a_resident_goes_for_the_prompt() -> None:
    play = Play(Budget(1, 512, 64, 128), n_slots=2, can_cut=False)
    play.enqueue(job([9] * 5, 1))
    play.run()
    play.enqueue(job([1] * 10, 2, n_candidates=2))
    play.step()
    (prompt,) = play.scheduler.cache._residents
    assert prompt.tokens.tolist() == [1] * 10
    play.drain()


def test_where_forks_are_whole_one_candidate_keeps_nothing_apart() -> None:
    play = Play(can_cut=False)
    play.enqueue(job([1] * 10, 5))
    play.step()
    assert len(play.scheduler.cache) == 0
    play.drain()


def test_where_forks_are_whole_a_conversation_goes_on_from_its_end_and_nowhere_else() -> None:
    play = Play(can_cut=False)
    play.enqueue(job([7] * 10, 3))
    play.run()
    said = [7] * 10 + [0, 1]  # the last of three tokens was drawn, not read
    play.enqueue(job([*said, 2, 5, 5], 1))
    play.run()
    assert play.n_tokens_read == 12 + 3
    play.enqueue(job(said[:11], 1))
    play.run()
    assert play.n_tokens_read == 12 + 3 + 11


# Waiting for what another reads


LONG = [k % 50 for k in range(90)]


@pytest.mark.parametrize("n_batch", [8, 32, 77, 512])
@pytest.mark.parametrize("n_parallel", [2, 3, 16])
def test_a_long_beginning_is_read_once_for_all_who_come_at_once(n_parallel: int, n_batch: int) -> None:
    n_batch = max(n_batch, n_parallel)
    play = Play(Budget(n_parallel, n_batch, 64, n_batch), n_slots=32)
    for k in range(12):
        play.enqueue(job([*LONG, 60 + k, 60 + k, 60 + k], 4))
    play.drain()
    assert play.n_tokens_read == len(LONG) + 12 * (3 + 3)


def test_the_options_of_a_question_wait_until_it_is_read() -> None:
    """An option reads the token before it once more, for its first score, and never its last."""
    play = Play(Budget(16, 512, 64, 512), n_slots=64)
    for first, n_read in ((50, len(LONG) + 20 + 4 * 5 - 1), (70, 20 + 4 * 5)):
        before, question = play.n_tokens_read, [first + k for k in range(20)]
        for k in range(4):
            play.enqueue(job([*LONG, *question, *[90 + k] * 5], 0, score_from=1, n_top=0))
        play.run()
        assert play.n_tokens_read - before == n_read


def test_strangers_overtake_those_that_wait_for_a_beginning() -> None:
    play = Play(Budget(4, 20, 64, 20))
    first, kin = play.enqueue(job(LONG, 2)), play.enqueue(job([*LONG, 1], 2))
    stranger = play.enqueue(job([99, 98], 2))
    assert admitted(play) == [first, stranger]
    while kin not in play.scheduler.running:
        play.step()
    play.drain()
    assert play.n_tokens_read == len(LONG) + 1 + 2 + 3


def test_a_short_beginning_is_not_worth_waiting_for() -> None:
    play = Play(Budget(4, 512, 64, 512))
    queued = [play.enqueue(job([*LONG[: WORTH_WAITING - 1], k], 2)) for k in (97, 98, 99)]
    assert admitted(play) == queued


def test_nobody_waits_where_forks_are_whole() -> None:
    play = Play(Budget(4, 20, 64, 20), can_cut=False)
    queued = [play.enqueue(job([*LONG, k], 2)) for k in (97, 98, 99)]
    assert admitted(play) == queued


def test_nobody_waits_for_a_beginning_whose_scores_it_would_lack() -> None:
    play = Play(Budget(4, 20, 64, 20))
    silent, scored = play.enqueue(job(LONG, 2)), play.enqueue(job([*LONG, 1], 0, score_from=1, n_top=0))
    assert admitted(play) == [silent, scored]


def test_one_who_waits_is_admitted_when_the_reader_is_gone() -> None:
    play = Play(Budget(4, 20, 64, 20))
    first, kin = play.enqueue(job(LONG, 2)), play.enqueue(job([*LONG, 1], 2))
    play.step()
    play.scheduler.remove(first)
    assert admitted(play) == [kin]
    play.drain()


def test_nobody_waits_for_a_few_tokens_more_than_are_there() -> None:
    play = Play(Budget(4, 100, 64, 100))
    play.enqueue(job(LONG, 1))
    play.run()
    queued = [play.enqueue(job([*LONG, 1, 2, 3, k], 2)) for k in (97, 98)]
    assert admitted(play) == queued


def test_nobody_waits_for_what_a_reader_reads_behind_the_common_beginning() -> None:
    play = Play(Budget(4, 20, 64, 20))
    first, kin = play.enqueue(job([*LONG, *([99] * 100)], 2)), play.enqueue(job([*LONG, 1], 2))
    for n_read in (20, 40, 60, 80, 100):
        assert kin not in play.scheduler.running
        play.step()
        assert first.n_computed == n_read
    assert admitted(play) == [kin]


# Residents


def beginnings(play: Play) -> list[int]:
    """The first token of each resident."""
    return [int(resident.tokens[0]) for resident in play.scheduler.cache._residents]


def test_a_resident_that_was_used_stays_longer() -> None:
    play = Play()
    for prompt in ([1, 1, 1], [2, 2, 2], [1, 1, 3]):
        play.enqueue(job(prompt, 1))
        play.run()
    assert beginnings(play) == [2, 1, 1]


@pytest.mark.parametrize(("n_slots", "n_cells"), [(2, 1000), (9, 21)])
def test_others_make_room_before_the_one_that_is_shared(n_slots: int, n_cells: int) -> None:
    play = Play(Budget(1, 512, 64, 128), n_cells, n_slots)
    for prompt in ([1] * 10, [2] * 10):
        play.enqueue(job(prompt, 1))
        play.run()
    play.enqueue(job([*([1] * 10), 3, 4], 1))
    play.run()
    assert play.n_tokens_read == 10 + 10 + 2


def test_a_shared_one_gives_way_where_nothing_else_makes_room() -> None:
    play = Play(Budget(1, 512, 64, 128), n_cells=20)
    play.enqueue(job([1] * 19, 1))
    play.run()
    play.enqueue(job([*([1] * 10), *([2] * 9)], 1))
    play.run()
    assert play.n_tokens_read == 19 + 19


def test_one_that_waits_for_room_leaves_the_residents_alone() -> None:
    """Evicting for one that cannot be admitted anyway would cost the next ones their beginnings."""
    play = Play(Budget(2, 100, 64, 100), n_cells=100)
    play.enqueue(job([1] * 20, 1))
    play.run()
    play.enqueue(job([2] * 50, 20))
    play.step()
    play.enqueue(job([3] * 60, 2))
    play.step()
    assert len(play.scheduler.cache) == 1
    play.drain()


# Preemption


def test_the_youngest_gives_way_and_waits_at_the_head_with_what_it_has() -> None:
    play = Play(n_cells=12)
    first, second = play.enqueue(job([1, 2, 3, 4], 8)), play.enqueue(job([5, 6, 7, 8], 8))
    third = play.enqueue(job([9] * 5, 1))
    while not play.scheduler.n_preempted:
        play.step()
    assert play.scheduler.running == [first]
    assert list(play.scheduler.waiting) == [second, third]
    assert (second.slot, second.n_computed, len(second.generated)) == (None, 0, 3)
    n_generated = len(second.generated)
    while second not in play.scheduler.running:
        play.step()
    assert len(second.generated) >= n_generated
    play.drain()
    assert len(first.generated) == len(second.generated) == 8


def test_a_preempted_sequence_reads_prompt_and_completion_in_one_piece() -> None:
    play = Play(n_cells=12)
    play.enqueue(job([1, 2, 3, 4], 8))
    second = play.enqueue(job([5, 6, 7, 8], 8))
    while not play.scheduler.n_preempted:
        play.step()
    while second not in play.scheduler.running:
        pieces = play.step()
    assert [piece.n_tokens for piece in pieces if piece.sequence is second] == [4 + 3]


def test_one_sequence_alone_gives_no_room() -> None:
    play = Play()
    play.enqueue(job([1, 2], 3))
    play.step()
    assert not play.scheduler.make_room()
    assert play.scheduler.n_preempted == 0


def test_siblings_that_were_preempted_fork_their_prompt_again() -> None:
    play = Play(Budget(2, 512, 64, 128), n_cells=17, n_slots=4)
    play.enqueue(job([1] * 10, 6, n_candidates=3))
    play.drain()
    assert play.scheduler.n_preempted > 0
    assert play.n_tokens_read <= 10 + 3 * 5 + 4 * play.scheduler.n_preempted
