"""The first bytes of a model file: whether there is any use in handing it to llama.cpp, and how large it will be.

Owns what goes wrong with downloads: nothing there, a pointer or a page in the model's place, another format. Refuses to
know tensors, whose bounds llama.cpp checks.
"""

import os
import struct
from pathlib import Path
from statistics import fmean
from typing import Any, BinaryIO

from app.errors import ModelError

Number = int | float

_HEADER = struct.Struct("<4sIQQ")
N_HEAD = _HEADER.size
"""Bytes that tell."""
_PAIR_BYTES, _TENSOR_BYTES = 13, 24
"""The least that a pair of metadata and the description of a tensor take."""

_FORMS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LONGEST = 1 << 16

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


def metadata(path: Path) -> dict[str, str | Number]:
    """What a file says of its model before it comes to the tokens, which are many; a list of numbers is its mean.

    An estimate may be made of it: what is odd about it ends it.
    """
    known: dict[str, str | Number] = {}
    try:
        with path.open("rb") as file:
            n_pairs = _HEADER.unpack(file.read(_HEADER.size))[3]
            for _ in range(n_pairs):
                if (key := _string(file)).startswith("tokenizer."):
                    break
                value = _value(file, _number(file, "I"))
                if value is not None:
                    known[key] = value
    except (OSError, struct.error, KeyError, UnicodeDecodeError, RecursionError):
        pass
    return known


def _number(file: BinaryIO, form: str) -> Any:
    reader = struct.Struct(f"<{form}")
    return reader.unpack(file.read(reader.size))[0]


def _string(file: BinaryIO) -> str:
    n_bytes = _number(file, "Q")
    if n_bytes > _LONGEST:
        raise struct.error(f"a string of {n_bytes} bytes")
    return file.read(n_bytes).decode()


def _value(file: BinaryIO, kind: int) -> str | Number | None:
    """A value of one of GGUF's kinds."""
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        number: Number = _number(file, _FORMS[kind])
        return number
    kind, length = _number(file, "I"), _number(file, "Q")
    if length > _LONGEST:
        raise struct.error(f"a list of {length} values")
    numbers = [value for _ in range(length) if isinstance(value := _value(file, kind), int | float)]
    return fmean(numbers) if numbers else None
