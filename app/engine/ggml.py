"""What ggml tells of devices, types and files, through functions that llama_cpp has but does not bind.

Owns their signatures, save for those of files, which are the `table`'s; the library itself is handed in by
`app.engine.llama`.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_size_t, c_void_p
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from app.engine import split, table

_GPU_KINDS = (1, 2)
"""GGML_BACKEND_DEVICE_TYPE_GPU and _IGPU."""
_N_TYPES = 64

_EXTRA_BUFFERS = b"ggml_backend_dev_get_extra_bufts"
_ExtraBuffers = CFUNCTYPE(POINTER(c_void_p), c_void_p)

_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "ggml_backend_load_all_from_path": (None, [c_char_p]),
    "ggml_backend_dev_count": (c_size_t, []),
    "ggml_backend_dev_get": (c_void_p, [c_size_t]),
    "ggml_backend_dev_name": (c_char_p, [c_void_p]),
    "ggml_backend_dev_description": (c_char_p, [c_void_p]),
    "ggml_backend_dev_memory": (None, [c_void_p, POINTER(c_size_t), POINTER(c_size_t)]),
    "ggml_backend_dev_type": (c_int, [c_void_p]),
    "ggml_backend_reg_count": (c_size_t, []),
    "ggml_backend_reg_get": (c_void_p, [c_size_t]),
    "ggml_backend_reg_name": (c_char_p, [c_void_p]),
    "ggml_type_name": (c_char_p, [c_int]),
    "ggml_backend_dev_backend_reg": (c_void_p, [c_void_p]),
    "ggml_backend_reg_get_proc_address": (c_void_p, [c_void_p, c_char_p]),
    "ggml_backend_buft_name": (c_char_p, [c_void_p]),
    **table.FUNCTIONS,
}


class Device(NamedTuple):
    """A device that computes. n_free: bytes; 0 where it does not tell."""

    name: str
    description: str
    is_gpu: bool
    n_free: int


class Ggml:
    """ggml's functions in an open library, or in those that it was linked to."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.folder = Path(library._name).parent
        self._call: dict[str, Any] = {}
        for name, (result, arguments) in _FUNCTIONS.items():
            function = self._call[name] = getattr(library, name)
            function.restype, function.argtypes = result, arguments

    def load_kernels(self) -> None:
        """A build for many processors has its kernels beside the library, where llama.cpp would not look for them.

        Asked of libllama's own handle: llama_cpp opens a second copy of libggml, whose register nobody reads.
        """
        if not self._call["ggml_backend_reg_count"]():
            self._call["ggml_backend_load_all_from_path"](os.fsencode(self.folder))

    def devices(self) -> list[Device]:
        """Every device that the build and the machine have, the processor among them."""
        self.load_kernels()
        get, count = self._call["ggml_backend_dev_get"], self._call["ggml_backend_dev_count"]
        return [self._device(get(i)) for i in range(count())]

    def _device(self, handle: int) -> Device:
        name, description = (
            self._call[f"ggml_backend_dev_{of}"](handle).decode("utf-8", "replace") for of in ("name", "description")
        )
        free, total = c_size_t(), c_size_t()
        self._call["ggml_backend_dev_memory"](handle, byref(free), byref(total))
        is_gpu = self._call["ggml_backend_dev_type"](handle) in _GPU_KINDS
        return Device(name, description, is_gpu, free.value)

    def backends(self) -> list[str]:
        """What the library was built for: CPU, CUDA, ..."""
        get, name = self._call["ggml_backend_reg_get"], self._call["ggml_backend_reg_name"]
        return [name(get(i)).decode() for i in range(self._call["ggml_backend_reg_count"]())]

    def type_of(self, name: str) -> int:
        """The number of a type, e.g. q8_0."""
        return next(i for i in range(_N_TYPES) if self._call["ggml_type_name"](i) == name.encode())

    def layouts(self) -> set[str]:
        """The layouts of its own that ggml can give weights on this machine's processors, e.g. AMX."""
        get, count = self._call["ggml_backend_dev_get"], self._call["ggml_backend_dev_count"]
        return {name for i in range(count()) for name in self._layouts(get(i))}

    def _layouts(self, device: int) -> Iterator[str]:
        register = self._call["ggml_backend_dev_backend_reg"](device)
        if address := self._call["ggml_backend_reg_get_proc_address"](register, _EXTRA_BUFFERS):
            for kind in takewhile(bool, _ExtraBuffers(address)(device)):
                yield self._call["ggml_backend_buft_name"](kind).decode()

    def table(self, path: Path) -> AbstractContextManager[table.Table]:
        """The table of one file, for a block. Raises ModelError where it cannot be read."""
        return table.opened(self._call, path)

    def tensors(self, path: Path) -> Iterator[tuple[str, int]]:
        """Name and bytes of each tensor of a model, of all its files. Raises ModelError where one cannot be read."""
        for part in (path.with_name(name) for name in split.parts_of(path.name)):
            with self.table(part) as lines:
                yield from ((tensor.name, tensor.n_bytes) for tensor in lines.tensors())
