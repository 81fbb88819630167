"""Where a model is, from llama.cpp's lines: made up after its source for GPUs, and real ones for this machine."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.engine import fit, placement
from app.engine.llama import LlamaBackend, LlamaModel, ggml
from app.engine.offload import CacheType, Offload
from app.engine.placement import Share
from app.engine.sizes import Sizes
from tests import toys

MIB = 1 << 20
SIZES = Sizes(n_context=64, n_cells=256, n_slots=2, n_batch=16, n_rows=2, n_threads=1)

# As llama.cpp's format strings have them: llama.cpp, llama-model.cpp, llama-kv-cache.cpp, llama-context.cpp.
TWO_GPUS = """\
llama_prepare_model_devices: using device CUDA1 (NVIDIA A (x)) (0000:c1:00.0) - 1000 MiB free
llama_prepare_model_devices: using device CUDA10 (NVIDIA B) (unknown id) - 1000 MiB free
load_tensors: layer   0 assigned to device CPU, is_swa = 0
load_tensors: layer   1 assigned to device CUDA1, is_swa = 1
load_tensors: layer   2 assigned to device CUDA1, is_swa = 0
load_tensors: layer   3 assigned to device CUDA10, is_swa = 0
load_tensors: offloaded 3/4 layers to GPU
load_tensors:        CUDA1 model buffer size =   200.00 MiB
load_tensors:       CUDA10 model buffer size =   100.50 MiB
load_tensors:   CPU_Mapped model buffer size =    50.00 MiB
load_tensors:          AMX model buffer size =    25.00 MiB
llama_context: flash_attn            = auto
llama_context:  CUDA_Host  output buffer size =     2.00 MiB
llama_kv_cache:      CUDA1 KV buffer size =    40.00 MiB
llama_kv_cache:     CUDA10 KV buffer size =    20.00 MiB
llama_kv_cache:        CPU KV buffer size =    20.00 MiB
llama_memory_recurrent:      CUDA1 RS buffer size =     4.00 MiB
resolve_fused_ops: Flash Attention enabled
sched_reserve:      CUDA1 compute buffer size =    64.25 MiB
sched_reserve:     CUDA10 compute buffer size =    60.00 MiB
sched_reserve:  CUDA_Host compute buffer size =     8.00 MiB""".splitlines()


def test_every_device_has_its_layers_and_bytes() -> None:
    read = placement.read(TWO_GPUS, {"CUDA1": "A", "CUDA10": "B", "CPU": "C"}.__getitem__)
    assert read.shares == (
        Share("CUDA1", "A", 2, 200 * MIB, 44 * MIB, 64 * MIB + MIB // 4),
        Share("CUDA10", "B", 1, 100 * MIB + MIB // 2, 20 * MIB, 60 * MIB),
        Share("CPU", "C", 1, 75 * MIB, 20 * MIB, 10 * MIB),
    )
    assert (read.n_gpu_layers, read.n_layers, read.flash_attn) == (3, 4, True)


@pytest.mark.parametrize(
    ("lines", "flash"),
    [
        (["llama_context: flash_attn            = enabled"], True),
        (["llama_context: flash_attn            = disabled"], False),
        (["llama_context: flash_attn            = auto", "resolve_fused_ops: Flash Attention enabled"], True),
        (
            [
                "llama_context: flash_attn            = auto",
                "resolve_fused_ops: Flash Attention not supported, set to disabled",
            ],
            False,
        ),
        ([], False),
    ],
)
def test_flash_attention_is_what_it_came_to(lines: list[str], flash: bool) -> None:
    assert placement.read(lines, str).flash_attn is flash


def test_a_whole_cache_is_told_though_none_is_allocated() -> None:
    lines = [
        "llama_kv_cache:      CUDA0 KV buffer size =     0.00 MiB",
        "llama_kv_cache: size =   48.00 MiB ( 16384 cells,   3 layers, 64/1 seqs), K (f16):   24.00 MiB, V (f16): ...",
        "llama_memory_recurrent: size =    2.50 MiB (    64 cells,  24 layers, 64 seqs  0 rs_seq), R (f32):    1 MiB",
    ]
    assert placement.cache_bytes(lines) == 50 * MIB + MIB // 2


def made(path: Path, offload: Offload, *, is_hollow: bool = False) -> LlamaBackend:
    return LlamaBackend(LlamaModel(path, offload, is_hollow=is_hollow), SIZES)


def test_this_llama_cpp_still_logs_in_these_words(toy_folder: Path) -> None:
    """Of a block and an output layer: the F32 weights' bytes, and keys and values of 256 cells."""
    path = toy_folder / "toy-spm.gguf"
    wanted = sum(size for _, size in ggml.tensors(path))
    backend = made(path, Offload(gpu_layers=0, flash_attn="on"))
    whole = backend.placement
    assert (whole.n_layers, whole.n_gpu_layers, whole.flash_attn) == (2, 0, True)
    cpu = whole.shares[-1]
    assert wanted <= cpu.n_weights <= wanted + MIB
    assert cpu.n_compute
    assert cpu.n_cache == backend.n_cache
    assert not made(path, Offload(gpu_layers=0, flash_attn="off")).placement.flash_attn


@pytest.mark.parametrize("kinds", [("f16", "f16"), ("f32", "f32"), ("q8_0", "q4_0"), ("bf16", "iq4_nl")])
def test_the_cache_is_kept_as_it_is_asked(toy_folder: Path, kinds: tuple[CacheType, CacheType]) -> None:
    """Bytes by hand: bits a number of each type, its scales included."""
    bits = {"f32": 32, "f16": 16, "bf16": 16, "q8_0": 8.5, "q4_0": 4.5, "iq4_nl": 4.5}
    offload = Offload(cache_type_k=kinds[0], cache_type_v=kinds[1])
    model = LlamaModel(toy_folder / "toy-spm.gguf", offload, is_hollow=True)
    sizes = replace(SIZES, n_cells=1 << 16)
    wanted = sizes.n_cells * toys.N_HEAD * (bits[kinds[0]] + bits[kinds[1]]) / 8
    assert LlamaBackend(model, sizes).n_cache == pytest.approx(wanted, abs=MIB / 50)


def test_a_model_without_its_weights_says_what_it_would_take(toy_folder: Path) -> None:
    path = toy_folder / "toy-spm.gguf"
    hollow, whole = (made(path, Offload(gpu_layers=0), is_hollow=hollow) for hollow in (True, False))
    assert hollow.n_cache == whole.n_cache > 0
    assert hollow.placement.n_layers == whole.placement.n_layers
    assert hollow.placement.shares[-1].n_compute == whole.placement.shares[-1].n_compute
    assert hollow.placement.shares[-1].n_weights == 0


def test_auto_is_none_where_there_is_no_gpu_and_what_is_asked_stays(toy_folder: Path) -> None:
    path = toy_folder / "toy-spm.gguf"
    asked: list[Offload] = [Offload(gpu_layers="all"), Offload(gpu_layers=7, mlock=True)]
    assert [fit.settled(path, offload, SIZES) for offload in asked] == asked
    if not any(device.is_gpu for device in ggml.devices()):
        assert fit.settled(path, Offload(), SIZES).gpu_layers == 0


def test_the_processor_is_a_device_and_every_cache_type_has_a_number() -> None:
    assert next(device.name for device in ggml.devices() if not device.is_gpu) == "CPU"
    assert "CPU" in ggml.backends()
    # ggml.h
    assert [ggml.type_of(name) for name in ("f32", "f16", "q4_0", "q8_0", "iq4_nl", "bf16")] == [0, 1, 2, 8, 20, 30]
