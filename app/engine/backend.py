"""What the engine needs of a model: the protocols that `app.engine.llama` fulfils, and tests with a table.

Slots are sequence ids of the backend's memory, 0..n_slots-1. Cells are that memory's unit: one a token, shared by
the slots that forked from one another.
"""

from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Limits:
    """What a backend can hold. n_rows: logits rows of one decode. n_batch: tokens of one decode.

    can_cut: whether a slot has parts, to be forked or forgotten; recurrent memories have none.
    """

    n_vocab: int
    n_context: int
    n_cells: int
    n_slots: int
    n_batch: int
    n_rows: int
    can_cut: bool = True


class Chunk(NamedTuple):
    """Consecutive tokens of one slot, from position `start`; the last `n_rows` of them want logits."""

    slot: int
    start: int
    tokens: list[int]
    n_rows: int


class Memory(Protocol):
    """The cells of the sequences that have been read."""

    def fork(self, source: int, target: int, n_tokens: int) -> None:
        """Let the empty slot `target` share the first `n_tokens` cells of `source`."""

    def cut(self, slot: int, n_tokens: int) -> None:
        """Forget all of a slot but its first `n_tokens` tokens. Only where `can_cut`."""

    def drop(self, slot: int) -> None:
        """Empty a slot; cells that no other slot holds become free."""


class Backend(Memory, Protocol):
    """A model that reads batches. Called from one thread, save for `limits`."""

    @property
    def limits(self) -> Limits: ...

    def decode(self, chunks: Ordered[Chunk]) -> NDArray[np.float32]:
        """Read the chunks in one pass; returns the rows wanted, in order: float32 (n_rows, n_vocab).

        The array is valid until the next decode. Raises NoRoom where cells are lacking; nothing was read then.
        """

    def piece(self, token: int) -> bytes:
        """The text bytes that a token prints; b"" for special tokens."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class FimTokens:
    """Special tokens that frame a gap to be filled. every: these, and those that part files and repositories."""

    prefix: int
    suffix: int
    middle: int | None
    every: frozenset[int]


class Vocabulary(Protocol):
    """The model's tokens. Safe to use from any thread."""

    @property
    def n_tokens(self) -> int: ...

    @property
    def bos(self) -> int | None: ...

    @property
    def eos(self) -> int | None: ...

    @property
    def pad(self) -> int | None: ...

    @property
    def chat_template(self) -> str | None:
        """The model's own, as it stands in the file; nothing here reads it."""

    @property
    def end_tokens(self) -> frozenset[int]:
        """Every end-of-generation token."""

    @property
    def adds_bos(self) -> bool:
        """Whether a text begins with BOS by the model's own rule."""

    @property
    def adds_space(self) -> bool:
        """Whether the tokenizer puts a space before a text, and after each special token in it."""

    @property
    def longest(self) -> int:
        """Bytes of the longest token: a text has at least as many tokens as it has times these."""

    @property
    def fim(self) -> FimTokens | None:
        """The tokens that frame a gap, where the model declares them."""

    def tokenize(self, text: str, parse_special: bool = True, add_space: bool = True) -> list[int]:
        """The tokens of a text; nothing is added but, unless `add_space` is off, the tokenizer's own space."""

    def piece(self, token: int) -> bytes:
        """The text bytes that a token prints; b"" for special tokens."""

    def name(self, token: int) -> bytes:
        """As `piece`; a special token's name."""

    def is_special(self, token: int) -> bool: ...
