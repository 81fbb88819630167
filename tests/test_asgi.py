"""What the settings, the model and the machine make of a context's sizes."""

import os
from dataclasses import replace
from typing import Any

import pytest

from app.asgi import fingerprint_of, offload_of, sizes_of, with_defaults
from app.catalogue.entries import Entry
from app.engine.offload import Offload
from app.engine.placement import Placement, Share
from app.engine.sizes import Sizes
from app.errors import SettingsError
from app.settings import Settings


def test_a_system_that_tells_no_affinity_is_asked_for_its_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert sizes_of(Settings()).n_threads == 7


@pytest.mark.parametrize(
    ("trained", "asked", "n_context"), [(4096, None, 4096), (32768, None, 8192), (4096, 6000, 6000)]
)
def test_the_context_is_the_models_up_to_8192_unless_it_is_set(trained: int, asked: int | None, n_context: int) -> None:
    sizes = sizes_of(Settings(ctx_size=asked)).settled(trained)
    assert sizes.n_context == n_context
    assert sizes.n_cells >= n_context
    assert sizes.n_cells % 256 == 0


@pytest.mark.parametrize("parallel", [1, 16, 64, 128])
def test_every_slot_has_a_row_or_llama_cpp_would_abort(parallel: int) -> None:
    sizes = sizes_of(Settings(parallel=parallel))
    assert parallel < sizes.n_slots <= 256
    assert sizes.n_rows >= sizes.n_slots


def test_a_cache_that_holds_no_longest_request_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"cache_size is 100.*ctx_size, which is 200"):
        sizes_of(Settings(cache_size=100, ctx_size=200)).settled(4096)


def test_the_catalogue_fills_in_what_was_left_open() -> None:
    entry = Entry(source="hf:a/b", file="m.gguf", context=512, fim_order="spm", fim_template="{suffix}{prefix}")
    own = with_defaults(Settings(parallel=3), entry)
    assert (own.ctx_size, own.fim_order, own.fim_template, own.parallel) == (512, "spm", "{suffix}{prefix}", 3)
    asked = Settings(ctx_size=64, fim_order="psm", fim_template="{prefix}{suffix}")
    assert with_defaults(asked, entry) == with_defaults(asked, None) == asked
    assert with_defaults(Settings(), Entry(source="hf:a/b", file="m.gguf")) == Settings()


CPU = Share("CPU", "a processor", 9, 1, 1, 1)
GPU = Share("CUDA0", "a GPU", 10, 1, 1, 1)
SIZES = Sizes(512, 1024, 32, 512, 32, 2)


def fingerprint(offload: Offload, *shares: Share, flash: bool = True, **changed: int) -> str:
    return fingerprint_of(b"digest", replace(SIZES, **changed), offload, Placement(shares, flash))


def test_the_fingerprint_covers_all_that_can_change_the_numbers() -> None:
    plain = Offload()
    prints = [
        fingerprint(plain, GPU, CPU),
        fingerprint_of(b"another", SIZES, plain, Placement((GPU, CPU), flash_attn=True)),
        fingerprint(plain, GPU, CPU, flash=False),
        fingerprint(plain, GPU, CPU, n_batch=256),
        fingerprint(plain, GPU, CPU, n_threads=1),
        fingerprint(plain, CPU),
        fingerprint(plain, replace(GPU, n_layers=9), CPU),
        fingerprint(plain, replace(GPU, description="another"), CPU),
        fingerprint(plain, GPU, GPU, CPU),
        fingerprint(Offload(repack=False), GPU, CPU),
        fingerprint(Offload(cache_type_k="q8_0"), GPU, CPU),
        fingerprint(Offload(cache_type_v="q8_0"), GPU, CPU),
        fingerprint(Offload(kv_offload=False), GPU, CPU),
    ]
    assert len(set(prints)) == len(prints)


@pytest.mark.parametrize(
    "change", [{"gpu_layers": "all"}, {"gpu_layers": 99}, {"mmap": False}, {"mlock": True}, {"main_gpu": 0}]
)
def test_what_changes_no_number_changes_no_fingerprint(change: dict[str, Any]) -> None:
    """The same layers on the same devices, however they were asked for, and however the file was read."""
    assert fingerprint(replace(Offload(), **change), GPU, CPU) == fingerprint(Offload(), GPU, CPU)
    moved = (replace(share, n_cache=5) for share in (GPU, CPU))
    assert fingerprint(Offload(), *moved) == fingerprint(Offload(), GPU, CPU)


def test_where_the_cache_would_lie_counts_only_beside_a_gpu() -> None:
    assert fingerprint(Offload(kv_offload=False), CPU) == fingerprint(Offload(), CPU)


def test_what_is_asked_of_devices_reaches_them() -> None:
    asked: dict[str, Any] = {
        "gpu_layers": 3, "tensor_split": (1.0, 2.0), "flash_attn": "on", "cache_type_k": "q8_0", "cache_type_v": "q4_0",
        "kv_offload": False, "mmap": False, "mlock": True, "repack": False,
    }  # fmt: skip
    assert offload_of(Settings(**asked)) == Offload(**asked)
    assert offload_of(Settings(main_gpu=1)) == Offload(main_gpu=1)
