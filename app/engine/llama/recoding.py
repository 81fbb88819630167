"""Which weights of a model are recoded for this machine: those that would else miss its processor's matrix units.

Owns the rule, which follows llama.cpp's own of what AMX takes (ggml-cpu/amx/amx.cpp).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from app.engine.llama.library import ggml
from app.engine.offload import Offload
from app.engine.recode import Part, Recoded
from app.engine.split import parts_of
from app.engine.stream import is_possible
from app.engine.table import Table, Tensor

_MATRIX_UNITS = "AMX"
_ROWS = 32
"""What the rows of a matrix must be a multiple of."""


def is_worth_it(offload: Offload) -> bool:
    """Whether this machine gains by it: weights that may be laid out anew, on processors that have matrix units."""
    stays = offload.gpu_layers == 0 or not any(device.is_gpu for device in ggml.devices())
    return is_possible and offload.repack and not offload.mmap and stays and _MATRIX_UNITS in ggml.layouts()


@contextmanager
def recoded(path: Path) -> Iterator[Recoded | None]:
    """A model's file with all recoded that gains by it, for a block; None where nothing does, or it is in parts.

    Raises ModelError or OSError where it cannot be read.
    """
    if len(parts_of(path.name)) > 1:
        yield None
        return
    with ggml.table(path) as table, path.open("rb", buffering=0) as file:
        before = {tensor.name: tensor for tensor in table.tensors()}
        chosen = set(_chosen(before))
        n_bytes = path.stat().st_size
        if not chosen or any(tensor.start + tensor.n_bytes > n_bytes for tensor in before.values()):
            yield None  # of a file that is cut off llama.cpp tells best
            return
        for name in chosen:
            table.retype(name, ggml.type_of("q8_0"))
        yield _changed(file, table, before, chosen)


def _changed(file: BinaryIO, table: Table, before: Mapping[str, Tensor], chosen: set[str]) -> Recoded:
    """The file as the table now is."""
    head, tensors = table.head(), table.tensors()
    moved = len(head) - tensors[0].start  # the beginning, which is written anew, may be shorter or longer
    parts = [Part(t.start + moved, t.n_bytes, before[t.name].start, t.name in chosen) for t in tensors]
    return Recoded(file, head, parts)


def _chosen(tensors: Mapping[str, Tensor]) -> Iterator[str]:
    """The matrices of a format that could be another. Embeddings are only looked up, if there is an output matrix."""
    q5_0 = ggml.type_of("q5_0")
    for tensor in tensors.values():
        _, n_rows, *more = tensor.shape
        is_looked_up = tensor.name == "token_embd.weight" and "output.weight" in tensors
        if tensor.type == q5_0 and n_rows % _ROWS == 0 and max(more) == 1 and not is_looked_up:
            yield tensor.name
