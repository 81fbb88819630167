"""The metadata and tensors of a GGUF file, all parts of it together.

Owns reading, and the keys without which no other can be understood; refuses to know what the rest mean.
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import gguf
import numpy as np
from gguf import GGUFReader, GGUFValueType

from app.engine import header, split
from app.errors import ModelError

T = TypeVar("T")

_HEAD_BYTES = 12
"""Of an array: the type of what is in it, and how many there are."""


class _Reader(GGUFReader):
    """gguf's own takes arrays number by number: for a vocabulary of 262,144 that is fourteen seconds."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[GGUFValueType]]:
        if raw_type != GGUFValueType.ARRAY:
            parts: tuple[int, list[Any], list[int], list[GGUFValueType]] = super()._get_field_parts(orig_offs, raw_type)
            return parts
        kind = GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
        n_values = int(self._get(orig_offs + 4, np.uint64)[0])
        start, types = orig_offs + _HEAD_BYTES, [GGUFValueType.ARRAY, kind]
        if kind == GGUFValueType.STRING:
            texts = self._texts(start, n_values)
            return _HEAD_BYTES + sum(8 + len(text) for text in texts), texts, list(range(len(texts))), types
        if kind == GGUFValueType.ARRAY:
            raise ValueError("arrays of arrays are not read")
        values = self._get(start, self.gguf_scalar_to_np[kind], n_values)
        return _HEAD_BYTES + values.nbytes, [values], [0], types

    def _texts(self, at: int, n_texts: int) -> list[memoryview]:
        """Strings are a length and so many bytes each. Raises struct.error where the file ends before they do."""
        view: memoryview = self.data.data
        length = struct.Struct("<Q" if self.byte_order == "I" else ">Q")
        texts = []
        for _ in range(n_texts):
            (size,) = length.unpack_from(view, at)
            texts.append(view[at + 8 : at + 8 + size])
            at += 8 + size
        return texts


class Gguf:
    """A model's files, read as far as they describe it. Raises ModelError where one is no GGUF, or is cut off."""

    def __init__(self, first: Path) -> None:
        self.paths = [first.with_name(name) for name in split.parts_of(first.name)]
        readers = [_opened(path) for path in self.paths]
        self._first = readers[0]
        self.tensors: Sequence[gguf.ReaderTensor] = [tensor for reader in readers for tensor in reader.tensors]

    @property
    def architecture(self) -> str:
        """What llama.cpp knows it as; its other keys begin so. Raises ModelError where the file names none."""
        name = self.get("general.architecture", str)
        if name is None:
            raise ModelError(
                f"{self.paths[0]}: this file names no architecture: it is no model, or a later part of one."
            )
        return name

    @property
    def n_context_trained(self) -> int:
        """Tokens; 0 where the file does not tell."""
        return self.get(f"{self.architecture}.context_length", int) or 0

    def get(self, key: str, kind: type[T]) -> T | None:
        """A value of a kind; None where the file has none of that kind by this key."""
        value = self._value(key)
        return value if type(value) is kind else None

    def _value(self, key: str) -> Any:
        """A number, a text, a boolean, or a list of these; None where the file has no such key."""
        field = self._first.fields.get(key)
        if field is None or field.types[-1] != GGUFValueType.STRING:
            return None if field is None else field.contents()
        texts = [bytes(field.parts[i]).decode("utf-8", "replace") for i in field.data]
        return texts if field.types[0] == GGUFValueType.ARRAY else texts[0]

    def length(self, key: str) -> int:
        """How many values a list has; 0 where there is none."""
        field = self._first.fields.get(key)
        return 0 if field is None else len(field.data)

    def has(self, *prefixes: str) -> bool:
        """Whether a key begins like one of these."""
        return any(key.startswith(prefixes) for key in self._first.fields)


def _opened(path: Path) -> _Reader:
    header.check(path)
    try:
        return _Reader(path)
    except (ValueError, KeyError, IndexError, OverflowError, struct.error) as error:
        raise ModelError(f"{path}: this file is cut off or damaged ({error}); download it again.") from None
