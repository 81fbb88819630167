"""A backend whose answers can be computed: the logits are rows of a table, chosen by everything that was read.

Reading a token leads from one state to the next, so that a row betrays a token that was read twice, left out or put
into the wrong slot. The backend is strict: it asserts what llama.cpp would abort on, and hands out one buffer of rows
that the next decode overwrites.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

from app.engine.backend import Chunk, Limits
from app.engine.params import Job
from app.errors import NoRoom

PROPERTY = settings(
    max_examples=100,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

PIECES: tuple[bytes, ...] = (
    b"a", b"b", b"ab", b"ba", b"c", b" ", b" a", "é".encode(), b"\xc3", b"\xa9",
    b"\xe2", b"\x82", b"\xac", b"\xe2\x82", b"b\xe2", b"\xff", "日".encode(), b"abc", b"", b"",
    b"x", b"y", b"z", b"",
)  # fmt: skip
N_VOCAB = len(PIECES)
MARK, END, OTHER_END = 18, 19, 23
N_STATES = 61


def table(seed: int = 0, n_states: int = N_STATES, n_vocab: int = N_VOCAB) -> NDArray[np.float32]:
    """Logits after each state; the end tokens are neither likely nor rare."""
    return np.random.default_rng(seed).normal(0, 2, (n_states, n_vocab)).astype(np.float32)


def next_state(state: int, token: int, n_states: int = N_STATES) -> int:
    return (state * 7 + token + 1) % n_states


def states(tokens: Iterable[int], n_states: int = N_STATES) -> list[int]:
    """The state after each token."""
    reached, state = [], 0
    for token in tokens:
        state = next_state(state, int(token), n_states)
        reached.append(state)
    return reached


def log_softmax(row: NDArray[Any]) -> NDArray[np.float64]:
    exact = row.astype(np.float64)
    top = exact.max()
    result: NDArray[np.float64] = exact - (top + np.log(np.exp(exact - top).sum()))
    return result


def job(prompt: Ordered[int], max_tokens: int = 4, **fields: Any) -> Job:
    """A job over PIECES, by default with its end tokens and a seed."""
    fields.setdefault("seed", 1)
    fields.setdefault("end_tokens", frozenset({END, OTHER_END}))
    return Job(np.array(prompt, np.int32), max_tokens, **fields)


class Poison(Exception):
    """What a fake decode raises when it is told to."""


class FakeBackend:
    """Fulfils `Backend`. The knobs below may be turned at any time between two decodes.

    n_cells: how many there really are, whatever `limits` says. fails: called with the number of the decode, counted
    from 0, and its chunks; may raise. leaves: whether such a decode leaves part of it in the slots. nan_after: tokens
    whose rows are NaN.
    """

    def __init__(
        self,
        n_cells: int = 1 << 20,
        n_slots: int = 64,
        n_batch: int = 1 << 12,
        n_rows: int = 1 << 10,
        logits: NDArray[np.float32] | None = None,
        pieces: Ordered[bytes] = PIECES,
        can_cut: bool = True,
    ) -> None:
        self.table = table() if logits is None else logits
        n_states, n_vocab = self.table.shape
        self.limits = Limits(n_vocab, n_cells, n_cells, n_slots, n_batch, n_rows, can_cut)
        self.n_cells = n_cells
        self.fails: Callable[[int, list[Chunk]], None] = lambda _n, _chunks: None
        self.leaves = False
        self.nan_after: frozenset[int] = frozenset()
        self.batches: list[list[Chunk]] = []
        self.forks: list[int] = []
        self.n_decodes = 0
        self.n_read = 0
        self.is_closed = False
        self._n_states = n_states
        self._pieces = pieces
        self._slots: list[list[int]] = [[] for _ in range(n_slots)]
        self._states: dict[int, int] = {}
        self._n_made = 0
        self._rows = np.empty((n_rows, n_vocab), np.float32)

    @property
    def n_used(self) -> int:
        """Cells that some slot holds."""
        return len(set().union(*self._slots))

    @property
    def n_held_slots(self) -> int:
        """Slots that hold cells."""
        return sum(map(bool, self._slots))

    def length(self, slot: int) -> int:
        return len(self._slots[slot])

    def piece(self, token: int) -> bytes:
        return self._pieces[token]

    def fork(self, source: int, target: int, n_tokens: int) -> None:
        assert source != target
        assert not self._slots[target], "a fork goes into an empty slot"
        assert n_tokens <= len(self._slots[source]), "a fork takes what has been read, no more"
        assert self.limits.can_cut or n_tokens == len(self._slots[source]), "a fork of a part"
        self.forks.append(n_tokens)
        self._slots[target] = self._slots[source][:n_tokens]

    def cut(self, slot: int, n_tokens: int) -> None:
        assert self.limits.can_cut, "a cut of what has no parts"
        assert n_tokens <= len(self._slots[slot]), "a cut behind the end"
        del self._slots[slot][n_tokens:]

    def drop(self, slot: int) -> None:
        self._slots[slot] = []

    def close(self) -> None:
        self.is_closed = True

    def decode(self, chunks: Ordered[Chunk]) -> NDArray[np.float32]:
        limits, number, chunks = self.limits, self.n_decodes, list(chunks)
        self.n_decodes += 1
        self.batches.append(chunks)
        n_tokens = sum(len(chunk.tokens) for chunk in chunks)
        n_rows = sum(chunk.n_rows for chunk in chunks)
        assert chunks
        assert n_tokens <= limits.n_batch, f"{n_tokens} tokens in a batch of {limits.n_batch}"
        assert n_rows <= limits.n_rows, f"{n_rows} rows in a decode of {limits.n_rows}"
        assert len({chunk.slot for chunk in chunks}) == len(chunks), "two chunks of one slot"
        for slot, start, tokens, n_wanted in chunks:
            assert len(tokens) >= 1, "an empty chunk"
            assert 0 <= n_wanted <= len(tokens)
            assert start == len(self._slots[slot]), "a gap, or a token read twice"
            assert all(type(token) is int and 0 <= token < limits.n_vocab for token in tokens)
        try:
            self.fails(number, chunks)
        except NoRoom:
            raise
        except Exception:
            for chunk in chunks[: 1 + len(chunks) // 2] if self.leaves else ():
                self._read(chunk)
            raise
        if self.n_used + n_tokens > self.n_cells:
            raise NoRoom("no cells left")
        self._rows.fill(np.nan)
        rows = [row for chunk in chunks for row in self._read(chunk)]
        for i, row in enumerate(rows):
            self._rows[i] = row
        self.n_read += n_tokens
        return self._rows[:n_rows]

    def _read(self, chunk: Chunk) -> list[NDArray[np.float32]]:
        cells, rows = self._slots[chunk.slot], []
        state = self._states[cells[-1]] if cells else 0
        for i, token in enumerate(chunk.tokens):
            state = next_state(state, token, self._n_states)
            self._n_made += 1
            self._states[self._n_made] = state
            cells.append(self._n_made)
            if i >= len(chunk.tokens) - chunk.n_rows:
                row = self.table[state]
                rows.append(np.full_like(row, np.nan) if token in self.nan_after else row)
        return rows
