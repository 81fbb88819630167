"""How much memory there is, by the files in which Linux tells of it; and how much a model is thought to take."""

from pathlib import Path

import pytest

from app.engine import memory
from app.engine.ggml import Device
from app.engine.llama import LlamaBackend, LlamaModel
from app.engine.offload import CacheType, Offload
from app.engine.sizes import Sizes
from app.errors import SettingsError

GIB = 1 << 30
SIZES = Sizes(n_context=512, n_cells=4096, n_slots=8, n_batch=64, n_rows=8, n_threads=1)


def tree(root: Path, **files: str) -> Path:
    """A machine of 16 GiB with these files; __ stands for /, and in a name a dot for itself."""
    for name, text in {"proc__meminfo": "MemTotal:       16777216 kB\nMemFree: 1 kB\n", **files}.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_a_control_group_it_is_the_machines(tmp_path: Path) -> None:
    assert memory.total(tree(tmp_path)) == 16 * GIB


@pytest.mark.parametrize(
    ("inner", "outer", "n_bytes"),
    [("max", "max", 16), (str(4 * GIB), "max", 4), ("max", str(3 * GIB), 3), (str(64 * GIB), str(5 * GIB), 5)],
)
def test_a_control_groups_limit_or_that_of_one_around_it_counts(
    tmp_path: Path, inner: str, outer: str, n_bytes: int
) -> None:
    files = {
        "proc__self__cgroup": "0::/a/b\n", "sys__fs__cgroup__a__b__memory.max": inner,
        "sys__fs__cgroup__a__memory.max": outer,
    }  # fmt: skip
    assert memory.total(tree(tmp_path, **files)) == n_bytes * GIB


def test_in_a_container_the_group_is_the_root(tmp_path: Path) -> None:
    files = {"proc__self__cgroup": "0::/\n", "sys__fs__cgroup__memory.max": str(2 * GIB)}
    assert memory.total(tree(tmp_path, **files)) == 2 * GIB


@pytest.mark.parametrize("limit", [2 * GIB, 1 << 63])
def test_the_first_version_of_control_groups_counts_too(tmp_path: Path, limit: int) -> None:
    files = {
        "proc__self__cgroup": "5:cpu,cpuacct:/x\n4:memory:/x\n", "sys__fs__cgroup__memory__x__memory.limit_in_bytes":
        str(limit), "sys__fs__cgroup__cpu__x__memory.max": "1",
    }  # fmt: skip
    assert memory.total(tree(tmp_path, **files)) == min(limit, 16 * GIB)


def test_where_nothing_is_told_it_is_endless(tmp_path: Path) -> None:
    assert memory.total(tmp_path) > 1 << 50


class Machine:
    """As much of ggml as a budget asks for."""

    def __init__(self, *devices: Device) -> None:
        self._devices = devices

    def devices(self) -> list[Device]:
        return list(self._devices)


def test_a_budget_is_most_of_the_memory_and_what_gpus_have_free(tmp_path: Path) -> None:
    root = tree(tmp_path)
    cpu = Device("CPU", "a processor", False, 9 * GIB)
    gpus = [Device("CUDA0", "a GPU", True, 24 * GIB), Device("CUDA1", "a full one", True, GIB // 2)]
    assert memory.budget(Machine(cpu), root) == int(0.8 * 16 * GIB)  # type: ignore[arg-type]
    assert memory.budget(Machine(cpu, *gpus), root) == int(0.8 * 16 * GIB) + 23 * GIB  # type: ignore[arg-type]


@pytest.mark.parametrize(("type_k", "type_v"), [("f16", "f16"), ("f32", "q8_0"), ("q4_0", "iq4_nl")])
def test_a_models_cache_is_reckoned_as_llama_cpp_makes_it(
    toy_folder: Path, type_k: CacheType, type_v: CacheType
) -> None:
    path = toy_folder / "toy-spm.gguf"
    n_bytes, n_context = memory.estimate(path, SIZES, type_k, type_v)
    model = LlamaModel(path, Offload(gpu_layers=0, cache_type_k=type_k, cache_type_v=type_v))
    backend = LlamaBackend(model, SIZES)
    (cpu,) = backend.placement.shares
    backend.close()
    assert n_context == 512
    assert n_bytes - path.stat().st_size - memory.COMPUTE == pytest.approx(cpu.n_cache, rel=0.01)


def test_what_no_file_tells_is_its_size(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(b"GGUF" + bytes(1000))
    assert memory.estimate(path, SIZES, "f16", "f16") == (1004 + memory.COMPUTE, 512)


def test_all_parts_of_a_model_count(tmp_path: Path) -> None:
    for part in (1, 2):
        (tmp_path / f"big-0000{part}-of-00003.gguf").write_bytes(b"GGUF" + bytes(1000))
    first = tmp_path / "big-00001-of-00003.gguf"
    assert memory.estimate(first, SIZES, "f16", "f16")[0] == 2008 + memory.COMPUTE


def test_a_cache_smaller_than_the_context_is_refused_before_a_load(toy_folder: Path) -> None:
    sizes = Sizes(n_context=512, n_cells=100, n_slots=8, n_batch=64, n_rows=8, n_threads=1)
    with pytest.raises(SettingsError, match="cache_size is 100"):
        memory.estimate(toy_folder / "toy-spm.gguf", sizes, "f16", "f16")


def test_memory_is_given_back_wherever_the_library_can() -> None:
    memory.give_back()
