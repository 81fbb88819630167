"""What `segue serve` says when it is ready: on a screen, or as lines of the log."""

import logging
import socket
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Ordered
from typing import Any

import msgspec
from rich.filesize import decimal
from rich.table import Table

from app import __version__, log
from app.api import server
from app.asgi import Loaded, offload_of
from app.cli.console import console
from app.engine.placement import CPU, Share
from app.muster import Place
from app.settings import Settings

logger = logging.getLogger("segue.cli")


def _warnings(
    settings: Settings, wanted: Ordered[Place], loaded: Mapping[str, Loaded], listener: socket.socket
) -> Iterator[str]:
    """What does not keep it from serving; said last, where it is seen."""
    for place in wanted:
        if there := loaded.get(place.id):
            for warning in _model_warnings(place.settings, there):
                yield f"{place.id}: {warning}" if settings.models else warning
    if not settings.api_key and not server.is_local(listener):
        yield "anyone who reaches this machine can use this server: set --api-key, or --host 127.0.0.1."


def _model_warnings(settings: Settings, loaded: Loaded) -> Iterator[str]:
    yield from _offload_warnings(settings, loaded)
    if loaded.backend.limits.n_context > loaded.meta.n_ctx_train:
        yield f"the model was trained on {loaded.meta.n_ctx_train} tokens; beyond them, text goes astray."


def _offload_warnings(settings: Settings, loaded: Loaded) -> Iterator[str]:
    gpus, asked = loaded.placement.gpus, settings.gpu_layers
    if not gpus and offload_of(settings).wants_gpu:
        yield (
            f"NO GPU IS USED, though one was asked for (--gpu-layers {asked}): llama.cpp sees none. It was built for "
            f"{', '.join(loaded.backends)}. Build it for yours by scripts/install --backend; where it was, look at the "
            "driver, and whether the container was given the device."
        )
    elif gpus and asked != 0 and not loaded.placement.n_gpu_layers:
        yield f"no layer fits on {gpus[0].device} beside 1 GiB of room: the CPU computes all. --gpu-layers N insists."
    if gpus and settings.flash_attn == "on" and not loaded.placement.flash_attn:
        yield "--flash-attn on has no effect: this model has no use for it."


def log_start(
    settings: Settings, wanted: Ordered[Place], loaded: Mapping[str, Loaded], listener: socket.socket
) -> None:
    """What the banner says, as lines of the log: where every line is an object, this one is too."""
    for warning in _warnings(settings, wanted, loaded, listener):
        logger.warning("%s", warning)
    offloads = {name: msgspec.to_builtins(there.meta.offload) for name, there in loaded.items()}
    told: dict[str, Any] = {"version": __version__, "model": wanted[0].id, "address": f"{server.url(listener)}/v1"}
    if settings.models:
        told["models"] = [{"id": place.id, "offload": offloads.get(place.id)} for place in wanted]
    else:
        told["offload"] = offloads.get(wanted[0].id)
    logger.info("serving", extra=log.fields(**told))


def _share(share: Share, loaded: Loaded) -> str:
    """What a device has of the model."""
    name = share.description if share.device in share.description else f"{share.description} ({share.device})"
    threads = f", {loaded.n_threads} threads" if share.device == CPU else ""
    sizes = (
        f"{decimal(n)} {what}"
        for n, what in ((share.n_weights, "weights"), (share.n_cache, "cache"), (share.n_compute, "to compute in"))
    )
    return f"{name}{threads}: {share.n_layers} of {loaded.placement.n_layers} layers, {', '.join(sizes)}"


def _rows(place: Place, loaded: Loaded) -> Iterator[tuple[str, str]]:
    """What there is to tell of a model."""
    settings, limits, meta = place.settings, loaded.backend.limits, loaded.meta
    yield "model", f"{', '.join(place.names)} ({meta.architecture}, {meta.quantization})"
    yield "context", f"{limits.n_context} tokens a request, {limits.n_cells} in the cache"
    yield "parallel", f"{settings.parallel} sequences, {settings.max_waiting} requests may wait"
    for share in loaded.placement.shares:
        yield "device", _share(share, loaded)
    types = f"{settings.cache_type_k} keys, {settings.cache_type_v} values"
    yield "attention", f"flash attention {'on' if loaded.placement.flash_attn else 'off'}, {types}"


def show(settings: Settings, wanted: Ordered[Place], loaded: Mapping[str, Loaded], listener: socket.socket) -> None:
    """The banner: what is served, where, and by what."""
    url = server.url(listener)
    table = Table.grid(padding=(0, 2))
    for place in wanted:
        there = loaded.get(place.id)
        waits = [("model", f"{', '.join(place.names)} (loaded on first use)")]
        for row in _rows(place, there) if there else waits:
            table.add_row(*row)
    table.add_row("address", f"{url}/v1 (documentation: {url}/docs)")
    console.print(f"[bold]segue {__version__}[/bold]")
    console.print(table, highlight=False, markup=False)
    body = f'{{"model": "{wanted[0].id}", "prompt": "The capital of France is", "max_tokens": 5}}'
    console.print(
        f"\ncurl {url}/v1/completions -H 'content-type: application/json' \\\n  -d '{body}'\n",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
    for text in _warnings(settings, wanted, loaded, listener):
        console.print(f"WARNING: {text}", style="bold white on red", highlight=False, markup=False, soft_wrap=True)
