"""How many layers a machine's GPUs hold: `auto` becomes a number.

Owns the measuring: the model is made without its weights, in a context of the sizes that are to be served, and
llama.cpp says what that would take. The arithmetic is `app.engine.offload`'s.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from dataclasses import replace
from pathlib import Path

from app.engine.llama import LlamaBackend, LlamaModel, ggml
from app.engine.offload import MARGIN, Offload, layer_sizes, layers_that_fit
from app.engine.placement import Share
from app.engine.sizes import Sizes


def settled(path: Path, offload: Offload, sizes: Sizes) -> Offload:
    """`auto` as the number of layers that fit; anything else as it is. Raises StartError."""
    if offload.gpu_layers != "auto":
        return offload
    free = {device.name: device.n_free for device in ggml.devices() if device.is_gpu}
    return replace(offload, gpu_layers=_fitting(path, offload, sizes, free) if free else 0)


def _fitting(path: Path, offload: Offload, sizes: Sizes, free: Mapping[str, int]) -> int:
    """How many layers fit. free: bytes on each GPU.

    Where not all do, those are measured once more: what is computed in grows with the layers that stay behind.
    """
    n_fitting, n_all = _measured(path, replace(offload, gpu_layers="all"), sizes, free)
    if n_fitting == n_all:
        return n_fitting
    return min(n_fitting, _measured(path, replace(offload, gpu_layers=n_fitting), sizes, free)[0])


def _measured(path: Path, offload: Offload, sizes: Sizes, free: Mapping[str, int]) -> tuple[int, int]:
    """How many layers fit beside what this offload computes in, and how many there are."""
    model = LlamaModel(path, offload, is_hollow=True)
    backend = LlamaBackend(model, sizes.settled(model.facts.n_context_trained))
    placed, n_cache = backend.placement, backend.n_cache if offload.kv_offload else 0
    backend.close()
    layers = layer_sizes(ggml.tensors(path), placed.n_layers - 1, n_cache)
    room = [free[gpu.device] - gpu.n_compute - MARGIN for gpu in placed.gpus]
    return layers_that_fit(layers, room, _shares(offload, placed.gpus, free)), len(layers)


def _shares(offload: Offload, gpus: Ordered[Share], free: Mapping[str, int]) -> list[float]:
    """How llama.cpp splits the layers: as it is told, else by free memory; evenly where no GPU tells of any."""
    told = [*offload.tensor_split, *[0.0] * len(gpus)][: len(gpus)]
    for shares in (told, [float(free[gpu.device]) for gpu in gpus]):
        if any(shares):
            return shares
    return [1.0] * len(gpus)
