"""A model file as it would be if some of its weights were written in another format, number for number.

llama.cpp has kernels for a processor's matrix units (AMX) that take some formats and not others. Q5_0, which quantised
models have wherever rows are no multiple of 256 numbers, is one of the others; every number of it is one of Q8_0's,
which they take. Owns the formats and the places of bytes; refuses to know why a tensor is recoded, and who reads it.

Both formats have blocks of 32 numbers, each a half-precision scale and 32 integers (ggml-common.h): Q5_0 the low four
bits of two integers a byte, their fifth bits apart, with 16 to be taken off; Q8_0 a byte each.
"""

from bisect import bisect_right
from collections.abc import Sequence as Ordered
from io import BufferedIOBase
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

Q5_0_BYTES, Q8_0_BYTES = 22, 34
"""Bytes of a block."""

_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_SIGNS = np.where(_BITS == 1, 0, 0xF0).astype(np.uint8).view(np.uint64).ravel()
"""For eight fifth bits: what they leave of the upper half of eight bytes, 16 taken off."""


def q8_0(blocks: Bytes) -> Bytes:
    """Q5_0's blocks, uint8 of shape (n, 22), as Q8_0's, of shape (n, 34): the same numbers."""
    recoded = np.empty((len(blocks), Q8_0_BYTES), np.uint8)
    signs = _SIGNS[blocks[:, 2:6]].view(np.uint8)
    recoded[:, :2] = blocks[:, :2]
    np.bitwise_or(blocks[:, 6:] & 0x0F, signs[:, :16], out=recoded[:, 2:18])
    np.bitwise_or(blocks[:, 6:] >> 4, signs[:, 16:], out=recoded[:, 18:])
    return recoded


class Part(NamedTuple):
    """A tensor: where its `n_bytes` begin in the recoded file, and where in the real one what they are made of does."""

    start: int
    n_bytes: int
    source: int
    is_recoded: bool


class Recoded:
    """The file, to be read at any place, a moderate piece at a time: its bytes are made when they are read."""

    def __init__(self, file: BufferedIOBase, head: bytes, parts: Ordered[Part]) -> None:
        """head: all before the first part, which tells of the recoded file. parts: in the order of their starts."""
        self._file = file
        self._head = np.frombuffer(head, np.uint8)
        self._parts = parts
        self._starts = [part.start for part in parts]
        self.n_bytes = parts[-1].start + parts[-1].n_bytes

    def read(self, at: int, into: Bytes) -> int:
        """Fill `into` from the file's byte `at` on; returns how many there were. Raises OSError."""
        n, done = max(min(len(into), self.n_bytes - at), 0), 0
        while done < n:
            n_more = self._read(at + done, into[done:n])
            if not n_more:  # the file has been cut off meanwhile
                break
            done += n_more
        return done

    def _read(self, at: int, into: Bytes) -> int:
        """As many bytes as are easily had at once."""
        i = bisect_right(self._starts, at) - 1
        if i >= 0 and at < self._parts[i].start + self._parts[i].n_bytes:
            part = self._parts[i]
            place = at - part.start
            into = into[: part.n_bytes - place]
            return self._recode(part, place, into) if part.is_recoded else self._copy(part.source + place, into)
        into = into[: self._starts[i + 1] - at]
        told = self._head[at : at + len(into)]
        into[: len(told)] = told
        into[len(told) :] = 0  # what fills up to where the next part may begin
        return len(into)

    def _copy(self, source: int, into: Bytes) -> int:
        self._file.seek(source)
        return self._file.readinto(into.data)

    def _recode(self, part: Part, place: int, into: Bytes) -> int:
        first, skipped = divmod(place, Q8_0_BYTES)
        n_blocks = -(-(skipped + len(into)) // Q8_0_BYTES)
        blocks = np.empty((n_blocks, Q5_0_BYTES), np.uint8)
        if self._copy(part.source + first * Q5_0_BYTES, blocks.reshape(-1)) < blocks.size:
            return 0
        into[:] = q8_0(blocks).reshape(-1)[skipped : skipped + len(into)]
        return len(into)
