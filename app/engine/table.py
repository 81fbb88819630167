"""The table of a GGUF file: which tensors there are, of which types, and where they lie.

Owns ggml's functions for it, which llama_cpp has but does not bind; the library itself is handed in. Refuses to know
what is in the tensors.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

from app.errors import ModelError


class _NoData(ctypes.Structure):
    """gguf_init_params: the table of tensors alone, without what is in them."""

    _fields_ = (("no_alloc", c_bool), ("context", c_void_p))


FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "gguf_init_from_file": (c_void_p, [c_char_p, _NoData]),
    "gguf_free": (None, [c_void_p]),
    "gguf_get_data_offset": (c_size_t, [c_void_p]),
    "gguf_get_n_tensors": (c_int64, [c_void_p]),
    "gguf_get_tensor_name": (c_char_p, [c_void_p, c_int64]),
    "gguf_get_tensor_type": (c_int, [c_void_p, c_int64]),
    "gguf_get_tensor_ne": (POINTER(c_int64), [c_void_p, c_int64]),
    "gguf_get_tensor_offset": (c_size_t, [c_void_p, c_int64]),
    "gguf_get_tensor_size": (c_size_t, [c_void_p, c_int64]),
    "gguf_set_tensor_type": (None, [c_void_p, c_char_p, c_int]),
    "gguf_get_meta_size": (c_size_t, [c_void_p]),
    "gguf_get_meta_data": (None, [c_void_p, c_void_p]),
}


class Tensor(NamedTuple):
    """A line of the table. type: its number. shape: four numbers, the columns first. start: its first byte's place."""

    name: str
    type: int
    shape: tuple[int, ...]
    start: int
    n_bytes: int


class Table:
    """An open table. It can be changed; the file stays as it is."""

    def __init__(self, call: dict[str, Any], handle: int) -> None:
        self._call = {name.removeprefix("gguf_"): call[name] for name in FUNCTIONS}
        self._handle = handle

    def tensors(self) -> list[Tensor]:
        """All tensors, in the order in which they lie."""
        call, handle = self._call, self._handle
        data = call["get_data_offset"](handle)
        return [
            Tensor(
                os.fsdecode(call["get_tensor_name"](handle, i)),
                call["get_tensor_type"](handle, i),
                tuple(call["get_tensor_ne"](handle, i)[:4]),
                data + call["get_tensor_offset"](handle, i),
                call["get_tensor_size"](handle, i),
            )
            for i in range(call["get_n_tensors"](handle))
        ]

    def retype(self, name: str, type_: int) -> None:
        """Give a tensor another type, of a block that divides its rows; those behind it move.

        ggml ends the process where there is no such tensor, or its rows do not divide so.
        """
        self._call["set_tensor_type"](self._handle, os.fsencode(name), type_)

    def head(self) -> bytes:
        """The file's beginning, up to the first tensor, as the table is now."""
        head = ctypes.create_string_buffer(self._call["get_meta_size"](self._handle))
        self._call["get_meta_data"](self._handle, head)
        return head.raw


@contextmanager
def opened(call: dict[str, Any], path: Path) -> Iterator[Table]:
    """The table of a file. Raises ModelError where it cannot be read."""
    handle = call["gguf_init_from_file"](os.fsencode(path), _NoData(True, None))
    if not handle:
        raise ModelError(f"{path}: llama.cpp cannot read this file; it may be cut off: download it again.")
    try:
        yield Table(call, handle)
    finally:
        call["gguf_free"](handle)
