"""What is asked of the devices that compute, and how many layers fit on them. Pure.

Owns the arithmetic of `auto` and llama.cpp's rule of which layer lands where; refuses to know how sizes and free memory
are found out.
"""

from bisect import bisect_right
from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, get_args

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
"""What llama.cpp keeps keys and values as."""
QUANTISED = frozenset(get_args(CacheType)) - {"f32", "f16", "bf16"}

MARGIN = 1 << 30
"""Bytes that `auto` leaves free on each device: for what its library takes as it runs, and for the screen. llama.cpp's
own tools leave as many."""


@dataclass(frozen=True, slots=True)
class Offload:
    """What is asked. gpu_layers: how many, counted from the last, the output after the last block being one too.

    main_gpu: the one device to use. tensor_split: each device's share of the layers; none: by free memory.
    mmap: None as the devices like it. repack: whether weights may be laid out anew for this processor.
    """

    gpu_layers: int | Literal["all", "auto"] = "auto"
    main_gpu: int | None = None
    tensor_split: tuple[float, ...] = ()
    flash_attn: Literal["auto", "on", "off"] = "auto"
    cache_type_k: CacheType = "f16"
    cache_type_v: CacheType = "f16"
    kv_offload: bool = True
    mmap: bool | None = None
    mlock: bool = False
    repack: bool = True

    @property
    def wants_gpu(self) -> bool:
        """Whether somebody who asks so counts on a GPU."""
        return self.gpu_layers not in (0, "auto") or self.main_gpu is not None or bool(self.tensor_split)


def layer_sizes(tensors: Iterable[tuple[str, int]], n_blocks: int, n_cache: int) -> list[int]:
    """Bytes of each layer with its part of the cache, the output layer last, from the names and bytes of all tensors.

    n_cache: bytes of the cache that go where the layers go. What comes before the first block stays in main memory.
    """
    table = dict(tensors)
    sizes = [-(-n_cache // n_blocks)] * n_blocks + [0]
    for name, n_bytes in table.items():
        head, _, rest = name.partition(".")
        if head == "blk":
            sizes[min(int(rest.partition(".")[0]), n_blocks)] += n_bytes
        elif head.startswith("output"):
            sizes[-1] += n_bytes
    if "output.weight" not in table:  # the embeddings are then the output matrix too, and copied to the device
        sizes[-1] += table.get("token_embd.weight", 0)
    return sizes


def layers_that_fit(sizes: Ordered[int], room: Ordered[int], shares: Ordered[float]) -> int:
    """The most layers, counted from the last, that devices hold. sizes: bytes of each layer; room: of each device.

    shares: how the layers are split among the devices.
    """
    for n in range(len(sizes), 0, -1):
        if all(load <= free for load, free in zip(_loads(sizes[-n:], shares), room, strict=True)):
            return n
    return 0


def _loads(sizes: Ordered[int], shares: Ordered[float]) -> list[int]:
    """Bytes on each device: layers go by their number, not their size, as llama.cpp has it."""
    ends = [end / sum(shares) for end in accumulate(shares)]
    loads = [0] * len(shares)
    for i, size in enumerate(sizes):
        loads[bisect_right(ends, i / len(sizes))] += size
    return loads
