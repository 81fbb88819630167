"""What `segue serve` says when it is ready: on a screen, or as lines of the log."""

import logging
import socket
from collections.abc import Iterator

import msgspec
from rich.filesize import decimal
from rich.table import Table

from app import __version__, log
from app.api import server
from app.asgi import Loaded, offload_of
from app.cli.console import console
from app.engine.placement import CPU, Share
from app.settings import Settings

logger = logging.getLogger("segue.cli")


def _warnings(settings: Settings, loaded: Loaded, listener: socket.socket) -> Iterator[str]:
    """What does not keep it from serving; said last, where it is seen."""
    yield from _offload_warnings(settings, loaded)
    if loaded.backend.limits.n_context > loaded.meta.n_ctx_train:
        yield f"the model was trained on {loaded.meta.n_ctx_train} tokens; beyond them, text goes astray."
    if not settings.api_key and not server.is_local(listener):
        yield "anyone who reaches this machine can use this server: set --api-key, or --host 127.0.0.1."


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


def log_start(settings: Settings, loaded: Loaded, listener: socket.socket) -> None:
    """What the banner says, as lines of the log: where every line is an object, this one is too."""
    for warning in _warnings(settings, loaded, listener):
        logger.warning("%s", warning)
    told = log.fields(
        version=__version__,
        model=loaded.names[0],
        address=f"{server.url(listener)}/v1",
        offload=msgspec.to_builtins(loaded.meta.offload),
    )
    logger.info("serving", extra=told)


def _share(share: Share, loaded: Loaded) -> str:
    """What a device has of the model."""
    name = share.description if share.device in share.description else f"{share.description} ({share.device})"
    threads = f", {loaded.n_threads} threads" if share.device == CPU else ""
    sizes = (
        f"{decimal(n)} {what}"
        for n, what in ((share.n_weights, "weights"), (share.n_cache, "cache"), (share.n_compute, "to compute in"))
    )
    return f"{name}{threads}: {share.n_layers} of {loaded.placement.n_layers} layers, {', '.join(sizes)}"


def show(settings: Settings, loaded: Loaded, listener: socket.socket) -> None:
    """The banner: what is served, where, and by what."""
    limits, meta, url = loaded.backend.limits, loaded.meta, server.url(listener)
    table = Table.grid(padding=(0, 2))
    table.add_row("model", f"{', '.join(loaded.names)} ({meta.architecture}, {meta.quantization})")
    table.add_row("context", f"{limits.n_context} tokens a request, {limits.n_cells} in the cache")
    table.add_row("parallel", f"{settings.parallel} sequences, {settings.max_waiting} requests may wait")
    for share in loaded.placement.shares:
        table.add_row("device", _share(share, loaded))
    types = f"{settings.cache_type_k} keys, {settings.cache_type_v} values"
    table.add_row("attention", f"flash attention {'on' if loaded.placement.flash_attn else 'off'}, {types}")
    table.add_row("address", f"{url}/v1 (documentation: {url}/docs)")
    console.print(f"[bold]segue {__version__}[/bold]")
    console.print(table, highlight=False, markup=False)
    body = f'{{"model": "{loaded.names[0]}", "prompt": "The capital of France is", "max_tokens": 5}}'
    console.print(
        f"\ncurl {url}/v1/completions -H 'content-type: application/json' \\\n  -d '{body}'\n",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
    for text in _warnings(settings, loaded, listener):
        console.print(f"WARNING: {text}", style="bold white on red", highlight=False, markup=False, soft_wrap=True)
