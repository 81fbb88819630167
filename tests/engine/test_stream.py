"""A Python reader as C's FILE, by C's own functions."""

import ctypes
import errno
import os
from ctypes import c_int, c_long, c_size_t, c_void_p

import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine import stream

pytestmark = pytest.mark.skipif(not stream.is_possible, reason="this C library has no streams of one's own")

CONTENT = np.random.default_rng(1).integers(0, 256, 3 * stream.N_BUFFER + 77, np.uint8)


class Source:
    """The content; whoever reads beyond `broken_at` gets the error."""

    n_bytes = len(CONTENT)

    def __init__(self, broken_at: int | None = None, error: Exception | None = None) -> None:
        self._broken_at = broken_at
        self._error = error or OSError(errno.EIO, "broken")

    def read(self, at: int, into: NDArray[np.uint8]) -> int:
        if self._broken_at is not None and at + len(into) > self._broken_at:
            raise self._error
        n = len(CONTENT[at : at + len(into)])
        into[:n] = CONTENT[at : at + n]
        return n


@pytest.fixture
def libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.fread.argtypes, library.fread.restype = [c_void_p, c_size_t, c_size_t, c_void_p], c_size_t
    library.fseek.argtypes = [c_void_p, c_long, c_int]
    library.ftell.argtypes, library.ftell.restype = [c_void_p], c_long
    library.ferror.argtypes = [c_void_p]
    return library


def fread(libc: ctypes.CDLL, file: int, n: int) -> bytes:
    buffer = ctypes.create_string_buffer(n)
    n_read = libc.fread(buffer, 1, n, file)
    return buffer.raw[:n_read]


def test_c_finds_its_end_and_reads_any_place_of_it(libc: ctypes.CDLL) -> None:
    whole = CONTENT.tobytes()
    with stream.opened(Source()) as file:
        assert libc.fseek(file, 0, os.SEEK_END) == 0
        assert libc.ftell(file) == len(whole)
        assert libc.fseek(file, 0, os.SEEK_SET) == 0
        assert fread(libc, file, len(whole) + 5) == whole
        for place in (5, len(whole) - 3, stream.N_BUFFER - 1, 0):
            assert libc.fseek(file, place, os.SEEK_SET) == 0
            assert fread(libc, file, 1000) == whole[place : place + 1000]
            assert libc.ftell(file) == min(place + 1000, len(whole))
        assert libc.fseek(file, -7, os.SEEK_CUR) == 0
        assert fread(libc, file, 7) == whole[993:1000]


def test_no_place_lies_before_the_first(libc: ctypes.CDLL) -> None:
    with stream.opened(Source()) as file:
        assert libc.fseek(file, -1, os.SEEK_SET) == -1
        assert fread(libc, file, 4) == CONTENT[:4].tobytes()


@pytest.mark.parametrize(
    ("error", "number"),
    [(OSError(errno.ENODEV, "gone"), errno.ENODEV), (OSError("?"), errno.EIO), (MemoryError(), errno.EIO)],
    ids=repr,
)
def test_any_fault_of_the_reader_is_an_error_of_the_stream(libc: ctypes.CDLL, error: Exception, number: int) -> None:
    with stream.opened(Source(stream.N_BUFFER, error)) as file:
        assert len(fread(libc, file, 2 * stream.N_BUFFER)) == stream.N_BUFFER
        assert ctypes.get_errno() == number
        assert libc.ferror(file)
