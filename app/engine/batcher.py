"""Continuous batching: one step reads one batch for whoever runs, and turns its rows into tokens and events.

Owns the path from a row of logits to an event. Refuses to know threads, event loops and who listens: what a step
brought comes back as (owner, events) pairs.
"""

import logging
import secrets
from collections import defaultdict
from collections.abc import Hashable
from collections.abc import Sequence as Ordered
from typing import NamedTuple

from app.engine.backend import Backend
from app.engine.crew import Crew
from app.engine.draft import Drafter
from app.engine.events import Event, FinishReason, PromptRead, Started
from app.engine.params import Job
from app.engine.sampler import Drawn, Want
from app.engine.scheduler import Budget, Piece, Scheduler
from app.engine.sequence import Family, Sequence
from app.engine.slots import Slots
from app.engine.stats import Stats
from app.engine.weights import Rows
from app.errors import GenerationFailed, NoRoom

logger = logging.getLogger("segue.engine")

Outcome = Event | GenerationFailed

N_GUESSED = 24
"""Guessed tokens that all sequences of a step read together: wider batches cost more than guesses save."""


class Turn(NamedTuple):
    """Sequences that draw from one row: one, or all candidates of a family at its beginning.

    row: its number among the step's rows. Those of a draft follow it; `n_guessed` was its length.
    """

    sequences: list[Sequence]
    row: int
    n_guessed: int = 0


class Batcher:
    """The engine without its thread: submit, cancel, step."""

    def __init__(
        self, backend: Backend, budget: Budget, *, keeps: bool = True, drafts: bool = False, n_threads: int = 1
    ) -> None:
        """keeps: whether what was read for one owner stays in the cells for others who begin alike.

        drafts: whether tokens are guessed from the text before, to be verified several in one step. n_threads: for rows
        of logits.
        """
        limits = backend.limits
        self._backend = backend
        self._crew = Crew(limits.n_vocab, n_threads)
        slots = Slots(backend, limits.n_slots, limits.n_cells)
        self._scheduler = Scheduler(slots, budget, can_cut=limits.can_cut, keeps=keeps)
        self._drafts = drafts and limits.can_cut
        self._outcomes: defaultdict[Hashable, list[Outcome]] = defaultdict(list)
        self.stats = Stats()

    @property
    def is_idle(self) -> bool:
        return self._scheduler.is_idle and not self._outcomes

    @property
    def n_running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._scheduler.running)

    @property
    def n_cells_used(self) -> int:
        return self._scheduler.slots.n_used

    @property
    def n_cells_running(self) -> int:
        """Cells that running sequences hold; inexact where another thread asks during a step."""
        return self._scheduler.n_cells_running

    @property
    def n_preempted(self) -> int:
        return self._scheduler.n_preempted

    def submit(self, owner: Hashable, jobs: Ordered[Job]) -> None:
        """Put an owner's jobs in the line. Jobs for which nothing must be read are done at once.

        One that could never run, for lack of cells, would hold up the line for ever: its owner fails.
        """
        n_cells = self._scheduler.slots.n_cells
        if any(len(job.prompt) + job.max_tokens > n_cells for job in jobs):
            self._fail(owner, NoRoom(f"a job needs more than all {n_cells} cells"))
            return
        for index, job in enumerate(jobs):
            entropy = secrets.randbits(128) if job.seed is None else job.seed & (2**64 - 1)
            leader = Sequence(Family(owner, index, job, entropy), 0)
            if leader.n_pending:
                self._scheduler.enqueue(leader)
            else:
                self._finish_scoring(leader)

    def cancel(self, owner: Hashable) -> None:
        """Forget an owner: nothing of it is left when this returns."""
        self._scheduler.discard(owner)
        self._outcomes.pop(owner, None)

    def step(self) -> list[tuple[Hashable, list[Outcome]]]:
        """Read one batch; returns what it brought, by owner."""
        self.stats.begin()
        for sequence in self._scheduler.admit():
            if not sequence.candidate:
                self._outcomes[sequence.family.owner].append(Started(sequence.family.index))
        if self._drafts:
            self._guess()
        pieces = self._scheduler.plan()
        self.stats.lap(self.stats.plan)
        if pieces:
            self._read(pieces)
        outcomes = [(owner, brought) for owner, brought in self._outcomes.items() if brought]
        self._outcomes.clear()
        return outcomes

    def _guess(self) -> None:
        """Give those that decode a draft of what may come next."""
        decoding = [s for s in self._scheduler.running if s.n_pending == 1 and s.family.is_read]
        for sequence in decoding:
            if sequence.drafter is None:
                sequence.drafter = Drafter(sequence.tokens(0, sequence.n_computed + 1).tolist())
            n_left = sequence.job.max_tokens - len(sequence.generated) - 1
            sequence.draft = sequence.drafter.guess(min(n_left, N_GUESSED // len(decoding)))

    def _read(self, pieces: list[Piece]) -> None:
        try:
            rows = self._backend.decode([piece.chunk for piece in pieces])
        except NoRoom as error:
            if not self._scheduler.make_room():
                self._fail(pieces[0].sequence.family.owner, error)
            elif pieces := self._scheduler.plan():  # before anyone is admitted to the cells that were freed
                self._read(pieces)
            return
        except Exception as error:
            logger.exception("decoding a batch of %d pieces failed", len(pieces))
            self._isolate(pieces, error)
            return
        self.stats.lap(self.stats.decode)
        for piece in pieces:
            self._scheduler.advance(piece)
        turns, n_taken = [], 0
        for piece in pieces:
            if turn := self._take(piece, rows[n_taken : n_taken + piece.n_rows], n_taken):
                turns.append(turn)
            n_taken += piece.n_rows
        while turns:
            turns = self._draw(turns, rows)
        self.stats.lap(self.stats.sample)

    def _isolate(self, pieces: list[Piece], error: Exception) -> None:
        """Read the halves of a batch that failed, each by itself, until whoever is at fault is alone.

        A model whose memory has no parts cannot forget what a failed decode left of it: there the whole batch fails.
        """
        if len(pieces) == 1 or not self._backend.limits.can_cut:
            for owner in {piece.sequence.family.owner for piece in pieces}:
                self._fail(owner, error)
            return
        for piece in pieces:
            self._scheduler.restore(piece.sequence)
        middle = len(pieces) // 2
        for half, starts in [(half, _starts(half)) for half in (pieces[:middle], pieces[middle:])]:
            # Reading the first half may have cost some of the second their slots, or read them too, for lack of room.
            if unread := [piece for piece, start in zip(half, starts, strict=True) if _starts([piece]) == [start]]:
                self._read(unread)

    def _take(self, piece: Piece, rows: Rows, first: int) -> Turn | None:
        """Score what a piece's rows score, the first being number `first`; the turn to draw, if it has come."""
        sequence = piece.sequence
        if sequence.slot is None:
            return None
        try:
            n_scored = 0 if sequence.family.is_read else self._score(sequence, rows)
        except Exception as error:
            logger.exception("scoring a prompt failed")
            self._fail(sequence.family.owner, error)
            return None
        if sequence.n_pending > 0:
            return None
        if not sequence.job.max_tokens:
            self._finish_scoring(sequence)
            self._scheduler.retire(sequence)
            return None
        siblings = [] if sequence.family.is_read else self._siblings(sequence)
        return Turn([sequence, *siblings], first + n_scored, len(sequence.draft))

    def _siblings(self, leader: Sequence) -> list[Sequence]:
        """The other candidates of a family whose prompt has just been read."""
        self._announce(leader.family)
        return [Sequence(leader.family, k) for k in range(1, leader.job.n_candidates)]

    def _fail(self, owner: Hashable, error: Exception) -> None:
        self.cancel(owner)
        self.stats.n_faults += 1
        self._outcomes[owner] = [GenerationFailed(f"{type(error).__name__}: {error}")]

    def _score(self, sequence: Sequence, rows: Rows) -> int:
        """Score the prompt tokens that follow these rows; returns how many rows that took."""
        family, job = sequence.family, sequence.job
        if job.score_from is None:
            return 0
        first = job.score_from + len(family.scores)
        targets: list[int] = job.prompt[first : first + len(rows)].tolist()
        scores = self._crew.scores(rows[: len(targets)], job.n_top or 0)
        family.scores += [scored.of(target) for scored, target in zip(scores, targets, strict=True)]
        return len(targets)

    def _announce(self, family: Family) -> None:
        family.is_read = True
        self._outcomes[family.owner].append(PromptRead(family.index, family.n_cached, family.scores))

    def _finish_scoring(self, leader: Sequence) -> None:
        """End a job that wants no tokens: each of its candidates is empty."""
        family = leader.family
        self._announce(family)
        for k in range(family.job.n_candidates):
            candidate = Sequence(family, k) if k else leader
            self._outcomes[family.owner].append(candidate.finish(FinishReason.LENGTH))

    def _draw(self, turns: list[Turn], rows: Rows) -> list[Turn]:
        """Draw a token for each sequence; returns the turns of those whose guess it was: they go on at once."""
        turns = [turn for turn in turns if turn.sequences[0].slot is not None]
        wants = [_want(turn) for turn in turns]
        try:
            drawn: list[Drawn | None] = [*self._crew.sample(rows, wants)]
        except Exception:
            logger.exception("drawing from %d rows failed; each is drawn from alone", len(turns))
            drawn = [self._draw_alone(turn, want, rows) for turn, want in zip(turns, wants, strict=True)]
        follows = [self._append(turn, found) for turn, found in zip(turns, drawn, strict=True) if found]
        return [turn for turn in follows if turn]

    def _draw_alone(self, turn: Turn, want: Want, rows: Rows) -> Drawn | None:
        """What comes of one turn; a fault costs its owner alone."""
        try:
            return self._crew.sample(rows, [want])[0]
        except Exception as error:
            logger.exception("a sequence failed")
            self._fail(turn.sequences[0].family.owner, error)
            return None

    def _append(self, turn: Turn, drawn: Drawn) -> Turn | None:
        """Take drawn tokens; returns the next turn where the token is the one that was guessed."""
        first = turn.sequences[0]
        if first.slot is None:  # an earlier turn has failed its owner
            return None
        try:
            self._tell(turn, drawn)
            if len(turn.sequences) > 1:
                self._scheduler.branch(first, [s for s in turn.sequences[1:] if not s.is_finished])
            return self._go_on(first, turn)
        except Exception as error:
            logger.exception("a sequence failed")
            self._fail(first.family.owner, error)
            return None

    def _tell(self, turn: Turn, drawn: Drawn) -> None:
        """Give the drawn tokens to their sequences, and what that brings to their owner."""
        family, scores = turn.sequences[0].family, drawn.scores
        outcomes = self._outcomes[family.owner]
        for sequence, token in zip(turn.sequences, drawn.tokens, strict=True):
            outcomes += sequence.append(token, scores.of(token) if scores else None, self._backend.piece(token))

    def _go_on(self, sequence: Sequence, turn: Turn) -> Turn | None:
        """The next turn of a sequence whose draft was right so far; for any other, the end of its step."""
        draft = sequence.draft
        n_right = turn.n_guessed - len(draft)
        if draft and draft[0] == sequence.generated[-1] and not sequence.is_finished:
            del draft[0]
            return Turn([sequence], turn.row + 1, turn.n_guessed)
        if sequence.drafter:
            sequence.drafter.extend(sequence.generated[-1 - n_right :])
            if turn.n_guessed:
                sequence.drafter.judge(turn.n_guessed, n_right)
                self._scheduler.cut(sequence)
        if sequence.is_finished:
            self._scheduler.retire(sequence)
        return None


def _starts(pieces: list[Piece]) -> list[tuple[int | None, int]]:
    """Where each piece begins: its slot, and the position there."""
    return [(piece.sequence.slot, piece.sequence.n_computed) for piece in pieces]


def _want(turn: Turn) -> Want:
    """What the sampler is asked for a turn."""
    first = turn.sequences[0]
    job, family = first.job, first.family
    uniforms = [0.0 if job.sampling.greedy else sequence.rng.random() for sequence in turn.sequences]
    banned = family.banned(len(first.generated))
    n_top = (job.n_top or 0) if family.scores_samples else None
    return Want(turn.row, job.sampling, uniforms, first.history, banned, n_top)
