"""Who waits, who runs, and which tokens of whom the next decode reads.

Owns the order: first come, first admitted; running sequences advance in every step, and prompts are read in what is
left of it. Where cells run out, the youngest waits again. Refuses to know logits, text and threads.
"""

from collections import deque
from collections.abc import Hashable, Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple

from app.engine.backend import Chunk
from app.engine.cache import PrefixCache, Share, Source
from app.engine.sequence import Sequence
from app.engine.slots import Slots

PASSED_OVER = 8
"""How many of the line may be let wait for others in one step, before who is behind them waits too."""
WORTH_WAITING = 16
"""Tokens that another must be about to spare a sequence for it to wait."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds of one step, and of what stays after it.

    n_beside: tokens for each prompt that is read in a step in which others decode: the more wait for their first
    token, the longer do those who have theirs wait for the next. n_resident: cells that ended sequences may hold while
    none runs, beside what they share. They are the fewer the more run, each of which has to look past them in every
    step. n_worth: tokens from which on a beginning is shared between owners.
    """

    n_parallel: int
    n_batch: int
    n_rows: int
    n_beside: int
    n_resident: int = 1 << 31
    n_worth: int = 1


class Piece(NamedTuple):
    """What one sequence reads in a step: its next `n_tokens` tokens, the last `n_rows` of which want logits."""

    sequence: Sequence
    n_tokens: int
    n_rows: int

    @property
    def chunk(self) -> Chunk:
        sequence = self.sequence
        assert sequence.slot is not None
        return Chunk(sequence.slot, sequence.n_computed, sequence.upcoming(self.n_tokens), self.n_rows)


class Scheduler:
    """Admits sequences to slots and plans steps. Every running sequence holds a slot, no waiting one does."""

    def __init__(self, slots: Slots, budget: Budget, *, can_cut: bool = True, keeps: bool = True) -> None:
        """can_cut: whether the backend can fork from part of a slot.

        keeps: whether what was read for an owner stays when nothing of that owner is left.
        """
        self.slots = slots
        self.budget = budget
        self.cache = PrefixCache(slots, can_cut=can_cut, n_worth=budget.n_worth)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        """In order of admission, the oldest first."""
        self.n_preempted = 0
        self._can_cut = can_cut
        self._keeps = keeps

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.waiting

    def enqueue(self, sequence: Sequence) -> None:
        """Put a sequence at the end of the line."""
        self.waiting.append(sequence)

    def branch(self, leader: Sequence, siblings: Ordered[Sequence]) -> None:
        """Put the siblings of a leader that has read their prompt at the head of the line: they fork from it.

        Where a fork can only be whole, the prompt is kept apart for them before the leader goes on.
        """
        assert leader.slot is not None
        self.waiting.extendleft(reversed(siblings))
        if siblings and not self._can_cut and (self.slots.n_idle or self.cache.evict()):
            prompt = Source.of(leader, len(leader.job.prompt))
            self.cache.keep(replace(prompt, slot=self.slots.fork(leader.slot, prompt.n_tokens)))

    def admit(self) -> list[Sequence]:
        """Give slots to the head of the line while there are slots and cells for it; returns who is new to one.

        One that could share more of what another is just reading lets those behind it go first.
        """
        if not self.waiting:
            return []
        admitted: list[Sequence] = []
        n_passed_over = 0
        for sequence in list(islice(self.waiting, self.budget.n_parallel + PASSED_OVER)):
            if len(self.running) >= self.budget.n_parallel or n_passed_over == PASSED_OVER:
                break
            if self._gains_by_waiting(sequence):
                n_passed_over += 1
                continue
            if not self._settle(sequence):
                break
            self.waiting.remove(sequence)
            if not sequence.has_run:
                admitted.append(sequence)
            sequence.has_run = True
            self.running.append(sequence)
            self._trim()
        return admitted

    def _gains_by_waiting(self, sequence: Sequence) -> bool:
        """Whether those that are just reading its beginning spare it enough, against what the others could now."""
        readers = {s: n for s in self.running if (n := self._promise(s, sequence)) > s.n_computed}
        later = max(readers.values(), default=0)
        if later < WORTH_WAITING:
            return False
        now = self.cache.best(sequence, [s for s in self.running if s not in readers])
        return later - (now.n_tokens if now else 0) >= WORTH_WAITING

    def _promise(self, reader: Sequence, sequence: Sequence) -> int:
        """Tokens that `sequence` could take over once `reader` has read what it has yet to."""
        if reader.n_pending < 2 or not self._can_cut:  # what can only be taken over whole soon goes on
            return 0
        found = self.cache.share(Source.promised(reader), sequence)
        return found.n_tokens if found else 0

    def _settle(self, sequence: Sequence) -> bool:
        """Give a sequence a slot, with the longest beginning that is there already; False where there is no room.

        Residents make room for it, the least recently used first, unless they could not make enough.
        """
        n_running = self.n_cells_running
        while True:
            found = self.cache.best(sequence, self.running)
            n_shared = found.n_tokens if found else 0
            n_needed = sequence.n_pending - n_shared + sum(s.n_pending for s in self.running)
            if n_running + n_needed > self.slots.n_cells:
                return False
            if self.slots.n_idle and n_needed <= self.slots.n_free:
                break
            if not self.cache.evict(besides=found.source if found else None) and not self.cache.evict():
                return False
        self._place(sequence, found)
        return True

    def _place(self, sequence: Sequence, found: Share | None) -> None:
        if not found:
            sequence.slot = self.slots.take()
            return
        self.cache.touch(found.source)
        sequence.slot = self.slots.fork(found.source.slot, found.n_tokens)
        sequence.n_computed = found.n_tokens
        sequence.family.scores += found.scores
        if not sequence.candidate and not sequence.has_run:
            sequence.family.n_cached = found.n_tokens

    def plan(self) -> list[Piece]:
        """The pieces of the next decode: a token for each sequence that decodes, then prompts, as far as they fit."""
        while self.running:
            if pieces := list(self._pieces()):
                return pieces
            if not self.make_room():
                raise RuntimeError("a single sequence found no room: more cells are in use than are counted")
        return []

    def _pieces(self) -> Iterator[Piece]:
        n_tokens, n_rows, n_free = self.budget.n_batch, self.budget.n_rows, self.slots.n_free
        decoding = [s for s in self.running if s.n_pending == 1][: min(n_tokens, n_rows)]
        if len(decoding) > n_free:
            return
        n_reading = len(self.running) - len(decoding)
        # Guesses are for steps that nobody else waits for: a prompt's tokens are certain.
        n_spare = 0 if n_reading else min(n_tokens, n_rows, n_free) - len(decoding)
        for sequence in decoding:
            del sequence.draft[n_spare:]
            n_spare -= len(sequence.draft)
            n = 1 + len(sequence.draft)
            n_tokens, n_rows, n_free = n_tokens - n, n_rows - n, n_free - n
            yield Piece(sequence, n, n)
        if not n_reading:
            return
        if decoding:
            n_tokens = min(n_tokens, self.budget.n_beside * n_reading)
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

    def cut(self, sequence: Sequence) -> None:
        """Forget the part of a sequence's draft that was read in vain."""
        sequence.draft = []
        n_excess = sequence.n_computed - (sequence.n_prompt + len(sequence.generated) - 1)
        if n_excess > 0:
            assert sequence.slot is not None
            sequence.n_computed -= n_excess
            self.slots.cut(sequence.slot, n_excess)

    def restore(self, sequence: Sequence) -> None:
        """Forget what a failed decode may have left of a sequence's piece."""
        if sequence.slot is not None:
            self.slots.restore(sequence.slot)

    def make_room(self) -> bool:
        """Free cells: those of a resident, else those of the youngest sequence, which goes back to the line's head.

        False where one sequence alone has everything already.
        """
        if self.cache.evict():
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
        sequence.slot, sequence.n_computed, sequence.draft = None, 0, []

    def retire(self, sequence: Sequence) -> None:
        """Take out a sequence that has ended; what it read stays resident."""
        self.running.remove(sequence)
        self.cache.keep(Source.of(sequence))
        sequence.slot = None
        self._trim()
        self._forget(sequence.family.owner)

    def _trim(self) -> None:
        """Evict residents until they hold no more cells than they may beside those that run."""
        allowed = self.budget.n_resident // (1 + len(self.running))
        while self._n_resident > allowed and self.cache.evict():
            pass

    @property
    def _n_resident(self) -> int:
        """Cells that only residents hold."""
        return self.slots.n_used - self.n_cells_running

    @property
    def n_cells_running(self) -> int:
        """Cells that running sequences hold."""
        slots = [s.slot for s in (*self.running,)]  # copied, since another thread may ask
        return self.slots.n_held(slot for slot in slots if slot is not None)

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
        self._forget(owner)

    def _forget(self, owner: Hashable) -> None:
        """With the last of its owner's sequences let go what was read, or what is not worth keeping of it."""
        if all(s.family.owner != owner for s in (*self.running, *self.waiting)):
            self.cache.forget(owner, self.budget.n_worth if self._keeps else None)
