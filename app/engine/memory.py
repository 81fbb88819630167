"""The memory of this machine: how much of it there is for this process, what a model will take, and giving it back.

Owns the estimates, which are made before anything is loaded; what a model has taken, `placement` knows.
"""

import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path

from app.engine.ggml import Ggml, parts
from app.engine.header import Number, metadata
from app.engine.offload import MARGIN, CacheType
from app.engine.sizes import Sizes

SHARE = 0.8
"""Of the machine's memory, what models may take."""
COMPUTE = 256 << 20
"""Bytes that a model computes in, about: rows of logits, and the widest layer of a batch."""

_BITS: dict[CacheType, float] = {
    "f32": 32, "f16": 16, "bf16": 16, "q8_0": 8.5, "q5_1": 6, "q5_0": 5.5, "q4_1": 5, "q4_0": 4.5, "iq4_nl": 4.5,
}  # fmt: skip
"""Bits of a number in the cache, its share of the scales included."""


def budget(ggml: Ggml, root: Path = Path("/")) -> int:
    """Bytes that models may take where nothing else is said: most of the memory, and all but a margin of each GPU's."""
    gpus = sum(max(device.n_free - MARGIN, 0) for device in ggml.devices() if device.is_gpu)
    return int(SHARE * total(root)) + gpus


def total(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may have: the machine's, or its control group's where that is less."""
    return min([_machine(root), *_limits(root)])


def _machine(root: Path) -> int:
    """Linux tells of it in a file; elsewhere what is not known is taken for endless."""
    try:
        words = (root / "proc/meminfo").read_text().split()
    except OSError:
        return 1 << 62
    return int(words[words.index("MemTotal:") + 1]) << 10


def _limits(root: Path) -> Iterator[int]:
    """The limits of the control group and of those around it, in both versions' files."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for _, kinds, path in (line.split(":", 2) for line in lines):
        if kinds and "memory" not in kinds.split(","):
            continue
        top, name = (root / "sys/fs/cgroup/memory", "memory.limit_in_bytes") if kinds else (
            root / "sys/fs/cgroup", "memory.max"
        )  # fmt: skip
        inner = top / path.lstrip("/")
        for folder in (inner, *inner.parents):
            yield from _limit(folder / name)
            if folder == top:
                break


def _limit(file: Path) -> Iterator[int]:
    try:
        told = file.read_text().strip()
    except OSError:
        return
    if told.isdigit():  # else "max"
        yield int(told)


def estimate(path: Path, sizes: Sizes, cache_type_k: CacheType, cache_type_v: CacheType) -> tuple[int, int]:
    """Bytes that a model will take, about, with its cache; and the tokens of its context. Raises SettingsError."""
    known = metadata(path)
    kind = known.get("general.architecture", "")

    def number(name: str, default: Number) -> Number:
        value = known.get(f"{kind}.{name}")
        return value if isinstance(value, int | float) else default

    settled = sizes.settled(int(number("context_length", 1 << 31)))
    n_heads = number("attention.head_count", 1)
    n_heads_kv = number("attention.head_count_kv", n_heads)
    length = number("embedding_length", 0) / n_heads
    bits = (
        number("attention.key_length", length) * _BITS[cache_type_k]
        + number("attention.value_length", length) * _BITS[cache_type_v]
    )
    n_cache = int(settled.n_cells * number("block_count", 0) * n_heads_kv * bits / 8)
    return sum(part.stat().st_size for part in parts(path) if part.exists()) + n_cache + COMPUTE, settled.n_context


def give_back() -> None:
    """Let the system have what has been freed: glibc keeps it for later, unless it is told not to."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)
