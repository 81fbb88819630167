"""Something that can be read, as a FILE of C's, which libraries read.

Owns the way from C's calls to Python's; refuses to know what is read. Where the C library has no such streams (glibc
and musl have), `is_possible` is False.
"""

import ctypes
import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_size_t, c_ssize_t, c_ubyte, c_void_p
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger("segue.engine")


class Readable(Protocol):
    """Bytes that can be had from any place on."""

    n_bytes: int

    def read(self, at: int, into: NDArray[np.uint8]) -> int:
        """Fill `into` from byte `at` on; returns how many there were. Raises OSError."""


_Read = CFUNCTYPE(c_ssize_t, c_void_p, c_void_p, c_size_t, use_errno=True)
_Write = CFUNCTYPE(c_ssize_t, c_void_p, c_void_p, c_size_t)
_Seek = CFUNCTYPE(c_int, c_void_p, POINTER(c_int64), c_int, use_errno=True)
_Close = CFUNCTYPE(c_int, c_void_p)


class _Functions(ctypes.Structure):
    """cookie_io_functions_t: what is null is not done."""

    _fields_ = (("read", _Read), ("write", _Write), ("seek", _Seek), ("close", _Close))


_library = ctypes.CDLL(None)
_open: Any = getattr(_library, "fopencookie", None)
is_possible = _open is not None
if is_possible:
    _open.restype, _open.argtypes = c_void_p, [c_void_p, c_char_p, _Functions]
    _library.setvbuf.argtypes = [c_void_p, c_void_p, c_int, c_size_t]
    _library.fclose.argtypes = [c_void_p]

_FULLY_BUFFERED = 0
N_BUFFER = 1 << 18
"""Bytes that are read at once, however many are asked for: C reads streams of this kind buffer by buffer."""


@contextmanager
def opened(source: Readable) -> Iterator[int]:
    """A FILE * at the beginning of it, closed with the block. Raises OSError where there is none to be had."""
    reader = _Reader(source)
    functions = _Functions(read=_Read(reader.read), seek=_Seek(reader.seek))
    file = _open(None, b"rb", functions)
    if not file:
        raise OSError("no stream could be opened")
    buffer = ctypes.create_string_buffer(N_BUFFER)
    _library.setvbuf(file, buffer, _FULLY_BUFFERED, N_BUFFER)
    try:
        yield file
    finally:
        _library.fclose(file)


class _Reader:
    """Where the stream stands. Its methods are C's: they tell of a fault, whatever it is, by -1 and errno.

    An exception that left them would be dropped, and C would take what lies in a register for the answer.
    """

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._at = 0

    def read(self, _: int, buffer: int, size: int) -> int:
        try:
            n = self._source.read(self._at, np.ctypeslib.as_array((c_ubyte * size).from_address(buffer)))
        except Exception as error:
            logger.exception("reading %d bytes for llama.cpp failed", size)
            ctypes.set_errno(getattr(error, "errno", None) or errno.EIO)
            return -1
        self._at += n
        return n

    def seek(self, _: int, offset: Any, whence: int) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._source.n_bytes}.get(whence)
        if base is None or base + offset[0] < 0:
            ctypes.set_errno(errno.EINVAL)
            return -1
        self._at = offset[0] = base + offset[0]
        return 0
