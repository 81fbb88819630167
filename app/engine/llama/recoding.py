"""Which weights of a model are recoded for this machine: those that would else miss its processor's matrix units.

Owns the rule, which follows llama.cpp's own of what AMX takes (ggml-cpu/amx/amx.cpp).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from app.engine.llama.library import ggml
from app.engine.offload import Offload
from app.engine.recode import Part, Recoded
from app.engine.split import parts_of
from app.engine.stream import is_possible
from app.engine.table import Table, Tensor
from app.errors import ModelError

_MATRIX_UNITS = "AMX"
_ROWS = 32
"""What the rows of a matrix must be a multiple of."""
_MOST_BYTES = 1 << 32
"""Of a tensor; llama.cpp maps larger ones from the file, whatever it is told."""


def helps_here(offload: Offload) -> bool:
    """Whether a model may gain by it: its weights may be laid out anew, by processors with matrix units.

    Where there is a GPU, llama.cpp lays none out so, even if the GPU gets no layers.
    """
    if not (is_possible and offload.repack) or offload.mmap:
        return False
    return _MATRIX_UNITS in ggml.layouts() and not any(device.is_gpu for device in ggml.devices())


@contextmanager
def recoded(path: Path) -> Iterator[Recoded | None]:
    """A model's file with all recoded that gains by it, for a block. None where nothing does, where the model is in
    parts, or there is something wrong with the file, of which llama.cpp tells best.
    """
    if len(parts_of(path.name)) > 1 or not (plan := _plan(path)):
        yield None
        return
    with path.open("rb") as file:
        yield Recoded(file, plan.head, plan.parts)


class _Plan(NamedTuple):
    """What a recoded file is made of; see `Recoded`."""

    head: bytes
    parts: list[Part]


def _plan(path: Path) -> _Plan | None:
    try:
        with ggml.table(path) as table:
            return _planned(table, path.stat().st_size)
    except (ModelError, OSError):
        return None


def _planned(table: Table, n_bytes: int) -> _Plan | None:
    """n_bytes: of the file, which may be shorter than its table says."""
    tensors = table.tensors()
    before = {tensor.name: tensor for tensor in tensors}
    has_odd = any(t.start + t.n_bytes > n_bytes or t.n_bytes >= _MOST_BYTES for t in tensors)
    chosen = set(_chosen(before))
    if not chosen or has_odd or len(before) < len(tensors):
        return None
    for name in chosen:
        table.retype(name, ggml.type_of("q8_0"))
    head, tensors = table.head(), table.tensors()
    moved = len(head) - tensors[0].start  # the beginning, which is written anew, may be shorter or longer
    return _Plan(head, [Part(t.start + moved, t.n_bytes, before[t.name].start, t.name in chosen) for t in tensors])


def _chosen(tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """The matrices of a format that could be another: those of blocks, and of the output. Others are looked up in."""
    q5_0 = ggml.type_of("q5_0")
    output = "output.weight" if "output.weight" in tensors else "token_embd.weight"
    for name, tensor in tensors.items():
        _, n_rows, *more = tensor.shape
        is_multiplied = name.startswith("blk.") or name == output
        if is_multiplied and tensor.type == q5_0 and n_rows % _ROWS == 0 and max(more) == 1:
            yield name
