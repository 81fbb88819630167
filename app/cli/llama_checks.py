"""Checks that need llama.cpp: how it was built, its devices, the model."""

from collections.abc import Iterator
from pathlib import Path

from rich.filesize import decimal

from app import muster
from app.asgi import n_processors, offload_of, sizes_of
from app.cli import checks
from app.cli.findings import Finding, refusal, well
from app.engine import build, fit, header, machine, probe
from app.engine.ggml import Device
from app.engine.llama import ggml, system_info
from app.errors import StartError
from app.names import file_of
from app.settings import Settings

_LESS = "a smaller --cache-size or --ctx-size, q8_0 for --cache-type-k and --cache-type-v, or a model of fewer bits"


def of_machine() -> Iterator[Finding]:
    """The build, and what it finds here."""
    yield library()
    yield checks.processor(machine.processor(), build.used(system_info()).get("CPU", frozenset()))
    yield gpus(ggml.devices(), ggml.backends(), machine.nvidia_gpus())


def of_settings(settings: Settings) -> Iterator[Finding]:
    """What the settings ask of both, for each model; and of several, what they ask together."""
    for each in settings.each():
        yield checks.threads(sizes_of(each).n_threads, n_processors(), machine.processor_quota())
        if offload_of(each).wants_gpu and not any(device.is_gpu for device in ggml.devices()):
            told = f"no GPU to be had, though one was asked for (--gpu-layers {each.gpu_layers})"
            remedy = "scripts/install --backend builds for one; --gpu-layers 0 asks for none"
            yield Finding("offload", "warn", told, remedy)
        yield from model(each)
    if settings.models:
        yield together(settings)


def library() -> Finding:
    """How llama.cpp was built."""
    compiler = build.compiler(ggml.folder)
    return well("llama.cpp", f"built for {', '.join(ggml.backends())}{f', by {compiler}' if compiler else ''}")


def gpus(devices: list[Device], backends: list[str], nvidia: list[str]) -> Finding:
    """GPUs that llama.cpp sees, and those that it could."""
    seen = [f"{gpu.description} ({gpu.name}), {decimal(gpu.n_free)} free" for gpu in devices if gpu.is_gpu]
    if seen:
        return well("gpu", "; ".join(seen))
    others = [name for name in backends if name not in ("CPU", "BLAS")]
    if others:
        remedy = "look at the driver, and whether the container was given the device"
        return Finding("gpu", "warn", f"none seen, though llama.cpp was built for {', '.join(others)}", remedy)
    if nvidia:
        told = f"{', '.join(nvidia)}, of no use to this build of llama.cpp"
        return Finding("gpu", "warn", told, "scripts/install --backend cuda")
    return well("gpu", "none")


def together(settings: Settings) -> Finding:
    """Whether several models can be told apart, and those that are loaded at the start fit into the budget."""
    try:
        wanted = muster.places(settings)
        budget = muster.check_budget(settings, wanted)
    except StartError as error:
        return refusal("models", error)
    return well("models", f"{', '.join(place.id for place in wanted)}, in {decimal(budget)} together")


def model(settings: Settings) -> Iterator[Finding]:
    """The file, and what comes of it."""
    try:
        path = file_of(settings.model)
        header.check(path)
    except StartError as error:
        if settings.model is None:
            yield Finding("model", "warn", "none was named", "--model PATH; scripts/get_model gets a small one")
        else:
            yield refusal("model", error)
        return
    yield well("model", f"{path}, {decimal(path.stat().st_size)}")
    yield from decode(path, settings)


def decode(path: Path, settings: Settings) -> Iterator[Finding]:
    """Whether it decodes here, and then what it takes."""
    sizes = sizes_of(settings)
    try:
        needs = fit.needs(path, probe.check(probe.Trial(str(path), offload_of(settings), sizes)), sizes)
    except StartError as error:
        yield refusal("decode", error)
        return
    yield well("decode", "a few tokens, tried in a child process")
    yield memory(needs, machine.memory(), sum(gpu.n_free for gpu in ggml.devices() if gpu.is_gpu))


def memory(needs: fit.Needs, main: machine.Memory | None, n_gpu_free: int) -> Finding:
    """What the model takes, against what there is. n_gpu_free: bytes on all GPUs; 0 where they do not tell."""
    sizes = (needs.n_weights, "weights"), (needs.n_cache, "cache"), (needs.n_compute, "to compute in")
    told = ", ".join(f"{decimal(size)} {what}" for size, what in sizes)
    n_here = sum(size for size, _ in sizes) - needs.n_on_gpus
    if needs.n_on_gpus > n_gpu_free > 0:
        told += f"; {decimal(needs.n_on_gpus)} of it on GPUs with {decimal(n_gpu_free)} free"
        return Finding("memory", "warn", told, "fewer --gpu-layers, or auto")
    if main is None:
        return well("memory", told)
    told += f"; {decimal(main.n_free)} of {decimal(main.n_most)} free"
    if n_here > main.n_most:
        return Finding("memory", "fail", told, _LESS)
    if n_here > main.n_free:
        return Finding("memory", "warn", told, f"{_LESS}; or end what else runs here")
    return well("memory", told)
