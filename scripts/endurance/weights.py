"""What memory a model needs by itself: its file, and the cells of its cache."""

from pathlib import Path

import gguf

BYTES = 2
"""Of a number in the cache, by llama.cpp's default."""


def model(path: str) -> int:
    """Bytes of the file."""
    return Path(path).stat().st_size


def cell(path: str) -> int:
    """Bytes of one token's keys and values. Raises KeyError where the file does not tell them."""
    reader = gguf.GGUFReader(path)

    def number(name: str) -> int:
        field = reader.fields[f"{reader.fields['general.architecture'].contents()}.{name}"]
        return int(field.contents())

    a_head = number("attention.key_length") + number("attention.value_length")
    return BYTES * number("block_count") * number("attention.head_count_kv") * a_head
