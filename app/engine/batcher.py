"""Continuous batching: one step reads one batch for whoever runs, and turns its rows into tokens and events.

Owns the path from a row of logits to an event. Refuses to know threads, event loops and who listens: what a step
brought comes back as (owner, events) pairs.
"""

import logging
import secrets
from collections import defaultdict
from collections.abc import Hashable
from collections.abc import Sequence as Ordered

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Backend
from app.engine.events import Event, FinishReason, PromptRead, Started
from app.engine.logprobs import RowScores
from app.engine.params import Job
from app.engine.sampler import Row, Sampler, merged_ids
from app.engine.scheduler import Budget, Piece, Scheduler
from app.engine.sequence import Family, Sequence
from app.engine.slots import Slots
from app.engine.stats import Stats
from app.errors import GenerationFailed, NoRoom

logger = logging.getLogger("segue.engine")

Outcome = Event | GenerationFailed


class Batcher:
    """The engine without its thread: submit, cancel, step."""

    def __init__(self, backend: Backend, budget: Budget, *, keeps: bool = True) -> None:
        """keeps: whether what was read for one owner stays in the cells for others who begin alike."""
        limits = backend.limits
        self._backend = backend
        self._sampler = Sampler(limits.n_vocab)
        slots = Slots(backend, limits.n_slots, limits.n_cells)
        self._scheduler = Scheduler(slots, budget, can_cut=limits.can_cut, keeps=keeps)
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
        pieces = self._scheduler.plan()
        self.stats.lap(self.stats.plan)
        if pieces:
            self._read(pieces)
        outcomes = [(owner, brought) for owner, brought in self._outcomes.items() if brought]
        self._outcomes.clear()
        return outcomes

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
            for owner in {piece.sequence.family.owner for piece in pieces}:
                self._fail(owner, error)
            return
        self.stats.lap(self.stats.decode)
        for piece in pieces:
            self._scheduler.advance(piece)
        n_taken = 0
        for piece in pieces:
            self._take(piece, rows[n_taken : n_taken + piece.n_rows])
            n_taken += piece.n_rows
        self.stats.lap(self.stats.sample)

    def _take(self, piece: Piece, rows: NDArray[np.float32]) -> None:
        """Give a piece's rows to its sequence; a fault costs its owner alone."""
        sequence = piece.sequence
        if sequence.slot is None:
            return
        try:
            n_scored = self._score(sequence, rows)
            if not sequence.n_pending:
                self._go_on(sequence, rows[n_scored:])
        except Exception as error:
            logger.exception("a sequence failed")
            self._fail(sequence.family.owner, error)

    def _go_on(self, sequence: Sequence, rows: NDArray[np.float32]) -> None:
        """A sequence has read all of its tokens: draw the next one from the row that is left, if one is wanted."""
        if not sequence.job.max_tokens:
            self._finish_scoring(sequence)
        elif sequence.family.is_read:
            self._sample([sequence], rows[0])
        else:
            self._begin(sequence, rows[0])
        if sequence.is_finished:
            self._scheduler.retire(sequence)

    def _fail(self, owner: Hashable, error: Exception) -> None:
        self.cancel(owner)
        self.stats.n_faults += 1
        self._outcomes[owner] = [GenerationFailed(f"{type(error).__name__}: {error}")]

    def _score(self, sequence: Sequence, rows: NDArray[np.float32]) -> int:
        """Score the prompt tokens that follow these rows; returns how many rows that took."""
        family, job = sequence.family, sequence.job
        if job.score_from is None:
            return 0
        first = job.score_from + len(family.scores)
        targets = job.prompt[first : first + len(rows)]
        for row, target in zip(rows, targets, strict=False):
            family.scores.append(RowScores(self._sampler, row, job.n_top or 0).of(int(target)))
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

    def _begin(self, leader: Sequence, row: Row) -> None:
        """Draw the first token of every candidate from the one row that they share."""
        family = leader.family
        self._announce(family)
        siblings = [Sequence(family, k) for k in range(1, family.job.n_candidates)]
        self._sample([leader, *siblings], row)
        self._scheduler.branch(leader, [s for s in siblings if not s.is_finished])

    def _sample(self, sequences: list[Sequence], row: Row) -> None:
        """Draw a token for each of these from one row; they have the same tokens so far."""
        first = sequences[0]
        job, outcomes = first.job, self._outcomes[first.family.owner]
        scores = RowScores(self._sampler, row, job.n_top or 0) if job.scores_samples else None
        early = job.banned_early if len(first.generated) < job.min_tokens else ()
        banned = merged_ids(job.banned, early)
        distribution = self._sampler.distribution(row, job.sampling, first.history, banned)
        for sequence in sequences:
            token = distribution.draw(sequence.rng.random())
            score = scores.of(token) if scores else None
            outcomes.extend(sequence.append(token, score, self._backend.piece(token)))
