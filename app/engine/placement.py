"""Where a model's layers and memory have landed, read from what llama.cpp logs: no function of it tells.

Owns the words of those lines; tests hold them against a real load. What a line does not say stays 0.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

CPU = "CPU"

_MIB = 1 << 20
_USED = re.compile(r"using device (\S+) \(")
_LAYER = re.compile(r"layer +\d+ assigned to device (\S+?),")
_FLASH = re.compile(r"(?:Flash Attention|flash_attn +=) (\w+)")
_BUFFER = re.compile(r"(\S+) +(model|KV|RS|DSV4 \w+ state|compute|output) buffer size = +([\d.]+) MiB")
_CACHE = re.compile(r": size = +([\d.]+) MiB \( *\d+ cells, +\d+ layers")


@dataclass(frozen=True, slots=True)
class Share:
    """What one device holds: layers, and bytes of weights, of the cache, and to compute in."""

    device: str
    description: str
    n_layers: int
    n_weights: int
    n_cache: int
    n_compute: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a model is. shares: of each GPU in use, then of the CPU."""

    shares: tuple[Share, ...]
    flash_attn: bool

    @property
    def gpus(self) -> tuple[Share, ...]:
        return self.shares[:-1]

    @property
    def n_layers(self) -> int:
        """All layers, the output after the last block being one of them."""
        return sum(share.n_layers for share in self.shares)

    @property
    def n_gpu_layers(self) -> int:
        return sum(share.n_layers for share in self.gpus)


def read(lines: Ordered[str], describe: Callable[[str], str]) -> Placement:
    """The placement that a load's lines tell. describe: what a device of that name is."""
    gpus = list(dict.fromkeys(name for line in lines for name in _USED.findall(line)))
    layers = Counter(name for line in lines for name in _LAYER.findall(line))
    n_bytes: Counter[tuple[str, str]] = Counter()
    for line in lines:
        for buffer, kind, size in _BUFFER.findall(line):
            n_bytes[_owner(buffer, gpus), _KINDS.get(kind, "cache")] += round(float(size) * _MIB)
    flash = [word for line in lines for word in _FLASH.findall(line)]
    shares = tuple(
        Share(name, describe(name), layers[name], *(n_bytes[name, kind] for kind in ("weights", "cache", "compute")))
        for name in [*gpus, CPU]
    )
    return Placement(shares, bool(flash) and flash[-1] == "enabled")


_KINDS = {"model": "weights", "compute": "compute", "output": "compute"}


def _owner(buffer: str, gpus: Iterable[str]) -> str:
    """CUDA0 and MTL0_Mapped lie on a GPU; CPU_Mapped, AMX and CUDA_Host in main memory."""
    return next((name for name in gpus if buffer == name or buffer.startswith(f"{name}_")), CPU)


def cache_bytes(lines: Iterable[str]) -> int:
    """Bytes of the whole cache, told even where none is allocated."""
    return sum(round(float(size) * _MIB) for line in lines for size in _CACHE.findall(line))
