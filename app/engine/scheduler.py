"""Who waits, who runs, and which tokens of whom the next decode reads.

Owns the order: first come, first admitted; running sequences advance in every step, and prompts are read in what is
left of it. Where cells run out, the youngest waits again. Refuses to know logits, text and threads.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import NamedTuple

from app.engine.backend import Chunk
from app.engine.sequence import Family, Sequence
from app.engine.slots import Slots


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds of one step. n_beside: prompt tokens read in a step in which others decode, not to hold them up."""

    n_parallel: int
    n_batch: int
    n_rows: int
    n_beside: int


class Piece(NamedTuple):
    """What one sequence reads in a step: its next `n_tokens` tokens, the last `n_rows` of which want logits."""

    sequence: Sequence
    n_tokens: int
    n_rows: int

    @property
    def chunk(self) -> Chunk:
        sequence, start = self.sequence, self.sequence.n_computed
        assert sequence.slot is not None
        return Chunk(sequence.slot, start, sequence.tokens(start, start + self.n_tokens), self.n_rows)


class Scheduler:
    """Admits sequences to slots and plans steps. Every running sequence holds a slot, no waiting one does."""

    def __init__(self, slots: Slots, budget: Budget) -> None:
        self.slots = slots
        self.budget = budget
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        """In order of admission, the oldest first."""
        self.n_preempted = 0
        self._trunks: dict[int, Family] = {}

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.waiting

    def enqueue(self, sequence: Sequence) -> None:
        """Put a sequence at the end of the line."""
        self.waiting.append(sequence)

    def branch(self, leader: Sequence, siblings: Ordered[Sequence]) -> None:
        """Put the siblings of a leader that has read their prompt at the head of the line.

        A trunk keeps the prompt's cells until the last of them has forked, whatever becomes of the leader. It costs
        no cells while any of them runs. Where no slot is left for it, they read the prompt again.
        """
        family = leader.family
        family.n_unforked = len(siblings)
        self.waiting.extendleft(reversed(siblings))
        if siblings and self.slots.n_idle and leader.slot is not None:
            family.trunk = self.slots.fork(leader.slot, len(family.job.prompt))
            self._trunks[family.trunk] = family

    def admit(self) -> list[Sequence]:
        """Give slots to the head of the line while there are slots and cells for it; returns who is new to one."""
        admitted = []
        while self.waiting and len(self.running) < self.budget.n_parallel and self._fits(self.waiting[0]):
            sequence = self.waiting.popleft()
            if not sequence.has_run:
                admitted.append(sequence)
            self._settle(sequence)
            self.running.append(sequence)
        return admitted

    def _fits(self, sequence: Sequence) -> bool:
        """Whether there are cells for what `sequence` must read, beside what those that run still have to.

        While anything runs, it is worth waiting for; a trunk is given up only when nothing else can free cells.
        """
        while not self.slots.n_idle or self._needed(sequence) > self.slots.n_free:
            if self.running or not self._release_trunk(besides=sequence.family):
                return False
        return True

    def _needed(self, sequence: Sequence) -> int:
        return sequence.n_pending - self._forkable(sequence) + sum(s.n_pending for s in self.running)

    def _forkable(self, sequence: Sequence) -> int:
        return len(sequence.job.prompt) if sequence.generated and sequence.family.trunk is not None else 0

    def _settle(self, sequence: Sequence) -> None:
        family = sequence.family
        if n_shared := self._forkable(sequence):
            assert family.trunk is not None
            sequence.slot = self.slots.fork(family.trunk, n_shared)
        else:
            sequence.slot = self.slots.take()
        sequence.n_computed = n_shared
        if sequence.candidate and not sequence.has_run:
            family.n_unforked -= 1
            if not family.n_unforked:
                self._drop_trunk(family)
        sequence.has_run = True

    def plan(self) -> list[Piece]:
        """The pieces of the next decode: a token for each sequence that decodes, then prompts, as far as they fit."""
        while self.running:
            if pieces := list(self._pieces()):
                return pieces
            if not self.make_room():
                raise RuntimeError("a single sequence found no room: more cells are in use than are counted")
        return []

    def _pieces(self) -> Iterator[Piece]:
        decoding = [s for s in self.running if s.n_pending == 1][: min(self.budget.n_batch, self.budget.n_rows)]
        if len(decoding) > self.slots.n_free:
            return
        n_tokens, n_rows = self.budget.n_batch, self.budget.n_rows
        n_free = self.slots.n_free
        for sequence in decoding:
            piece = self._piece(sequence, 1, n_rows)
            n_tokens, n_rows, n_free = n_tokens - 1, n_rows - piece.n_rows, n_free - 1
            yield piece
        n_tokens = min(n_tokens, self.budget.n_beside) if decoding else n_tokens
        for sequence in self.running:
            if sequence.n_pending > 1:
                piece = self._piece(sequence, min(sequence.n_pending, n_tokens, n_free), n_rows)
                if piece.n_tokens:
                    n_tokens, n_free = n_tokens - piece.n_tokens, n_free - piece.n_tokens
                    n_rows -= piece.n_rows
                    yield piece

    @staticmethod
    def _piece(sequence: Sequence, n_tokens: int, n_rows: int) -> Piece:
        """As many of `n_tokens` as `n_rows` rows allow."""
        start, first_row = sequence.n_computed, sequence.next_row
        n_tokens = min(n_tokens, max(first_row - start, 0) + n_rows)
        return Piece(sequence, n_tokens, max(start + n_tokens - max(first_row, start), 0))

    def advance(self, piece: Piece) -> None:
        """Count a piece that has been read."""
        sequence = piece.sequence
        assert sequence.slot is not None
        sequence.n_computed += piece.n_tokens
        self.slots.grow(sequence.slot, piece.n_tokens)

    def make_room(self) -> bool:
        """Free cells: those of a trunk, else those of the youngest sequence, which goes back to the head of the line.

        False where one sequence alone has everything already.
        """
        shared = {id(sequence.family) for sequence in self.running}
        if lonely := next((f for f in self._trunks.values() if id(f) not in shared), None):
            self._drop_trunk(lonely)
            return True
        if len(self.running) < 2:
            return False
        youngest = self.running[-1]
        self._vacate(youngest)
        self.waiting.appendleft(youngest)
        self.n_preempted += 1
        return True

    def _vacate(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        assert sequence.slot is not None
        self.slots.drop(sequence.slot)
        sequence.slot, sequence.n_computed = None, 0

    def _release_trunk(self, besides: Family | None = None) -> bool:
        """Give up the oldest trunk, that of `besides` last; siblings will read their prompt again."""
        family = next((f for f in self._trunks.values() if f is not besides), besides)
        if family is None or family.trunk is None:
            return False
        self._drop_trunk(family)
        return True

    def _drop_trunk(self, family: Family) -> None:
        if family.trunk is not None:
            del self._trunks[family.trunk]
            self.slots.drop(family.trunk)
            family.trunk = None

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is; its cells are free at once."""
        if sequence.slot is not None:
            self._vacate(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def discard(self, owner: Hashable) -> None:
        """Take out everything of an owner."""
        for sequence in [s for s in (*self.running, *self.waiting) if s.family.owner == owner]:
            self.remove(sequence)
        for family in [f for f in self._trunks.values() if f.owner == owner]:
            self._drop_trunk(family)
