"""How many layers a machine's GPUs hold, so that `auto` becomes a number; and what a model takes of memory.

Owns the measuring: the model is made without its weights, in a context of the sizes that are to be served, and
llama.cpp says what that would take. The arithmetic is `app.engine.offload`'s.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from app.engine.llama import LlamaBackend, LlamaModel, ggml
from app.engine.offload import MARGIN, Offload, layer_sizes, layers_that_fit
from app.engine.placement import Placement, Share
from app.engine.sizes import Sizes


def settled(path: Path, offload: Offload, sizes: Sizes) -> Offload:
    """`auto` as the number of layers that fit; anything else as it is. Raises StartError."""
    if offload.gpu_layers != "auto":
        return offload
    free = {device.name: device.n_free for device in ggml.devices() if device.is_gpu}
    return replace(offload, gpu_layers=_fitting(path, offload, sizes, free) if free else 0)


class Needs(NamedTuple):
    """Bytes that a model takes: weights, cache, to compute in; and how many of them all lie on GPUs."""

    n_weights: int
    n_cache: int
    n_compute: int
    n_on_gpus: int


def needs(path: Path, offload: Offload, sizes: Sizes) -> Needs:
    """What a model takes with as many layers on GPUs as the offload says; `auto` is all. Raises StartError."""
    hollow = _hollow(path, offload, sizes)
    gpus, n_layers = hollow.placement.gpus, hollow.placement.n_gpu_layers
    n_compute = sum(share.n_compute for share in hollow.placement.shares)
    n_on_gpus = sum(hollow.layers[len(hollow.layers) - n_layers :]) + sum(gpu.n_compute for gpu in gpus)
    return Needs(hollow.n_weights, hollow.n_cache, n_compute, n_on_gpus)


class _Hollow(NamedTuple):
    """A model that was made without its weights. layers: bytes of each with its part of the cache, the output last."""

    placement: Placement
    layers: list[int]
    n_weights: int
    n_cache: int


def _hollow(path: Path, offload: Offload, sizes: Sizes) -> _Hollow:
    model = LlamaModel(path, offload, is_hollow=True)
    backend = LlamaBackend(model, sizes.settled(model.facts.n_context_trained))
    placed, n_cache = backend.placement, backend.n_cache
    backend.close()
    layers = layer_sizes(ggml.tensors(path), placed.n_layers - 1, n_cache if offload.kv_offload else 0)
    return _Hollow(placed, layers, model.n_bytes, n_cache)


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
    placed, layers, *_ = _hollow(path, offload, sizes)
    room = [free[gpu.device] - gpu.n_compute - MARGIN for gpu in placed.gpus]
    return layers_that_fit(layers, room, _shares(offload, placed.gpus, free)), len(layers)


def _shares(offload: Offload, gpus: Ordered[Share], free: Mapping[str, int]) -> list[float]:
    """How llama.cpp splits the layers: as it is told, else by free memory; evenly where no GPU tells of any."""
    told = [*offload.tensor_split, *[0.0] * len(gpus)][: len(gpus)]
    for shares in (told, [float(free[gpu.device]) for gpu in gpus]):
        if any(shares):
            return shares
    return [1.0] * len(gpus)
