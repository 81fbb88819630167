"""The first bytes of a model file: whether there is any use in handing it to llama.cpp.

Owns what goes wrong with downloads: nothing there, a pointer or a page in the model's place, another format. Refuses to
know metadata, which the catalogue reads, and tensors, whose bounds llama.cpp checks.
"""

import os
import struct
from pathlib import Path

from app.errors import ModelError

_HEADER = struct.Struct("<4sIQQ")
N_HEAD = _HEADER.size
"""Bytes that tell."""
_PAIR_BYTES, _TENSOR_BYTES = 13, 24
"""The least that a pair of metadata and the description of a tensor take."""

_GET_GGUF = "get the model as GGUF, or convert it by llama.cpp's convert_hf_to_gguf.py"
_OTHERS = (
    (b"version https://git-lfs", "is a Git-LFS pointer, not what it points to; get that by `git lfs pull`"),
    (b"<", "is a web page; download the file itself"),
    (b"PK\x03\x04", f"is an archive, as PyTorch's models are; {_GET_GGUF}"),
    (b"tjgg", "is of a format older than GGUF; get the model as GGUF"),
)


def check(path: Path) -> None:
    """Raises ModelError, with the remedy, where a file cannot be a model."""
    size, head = _read(path)
    if wrong := fault(size, head):
        raise ModelError(f"{path}: this file {wrong}.")


def _read(path: Path) -> tuple[int, bytes]:
    """A file's size and first bytes."""
    try:
        if not path.exists():
            raise ModelError(f"{path}: there is no such model file; check --model, or get one by `segue models get`.")
        if not path.is_file():
            raise ModelError(f"{path}: this is no file; name the GGUF file itself.")
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size, file.read(N_HEAD)
    except OSError as error:
        raise ModelError(f"{path}: this file cannot be read: {error.strerror}; check its owner and mode.") from None


def fault(size: int, head: bytes) -> str | None:
    """What is wrong with a file of so many bytes that begins so, and what to do; None where nothing is."""
    if not size:
        return "is empty; download it again"
    if not head.startswith(b"GGUF"):
        return _other(head)
    if len(head) < N_HEAD:
        return "is cut off; download it again"
    _, version, n_tensors, n_pairs = _HEADER.unpack(head)
    if version > 0xFFFF:
        return "is for big-endian machines; get the little-endian one"
    if n_tensors * _TENSOR_BYTES + n_pairs * _PAIR_BYTES > size:
        return f"is cut off or damaged: {n_tensors} tensors do not fit into {size} bytes; download it again"
    return None


def _other(head: bytes) -> str:
    """What a file is that is no GGUF."""
    for start, told in _OTHERS:
        if head.startswith(start):
            return told
    # safetensors: the length of a JSON object, then the object.
    return f"is in the safetensors format; {_GET_GGUF}" if head[8:9] == b"{" else f"is not GGUF; {_GET_GGUF}"
