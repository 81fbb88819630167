"""`auto` on machines that are made up: two blocks of 100 MiB, an output of 50, a cache of 20."""

from pathlib import Path

import pytest

from app.engine import fit
from app.engine.ggml import Device
from app.engine.llama import LlamaModel
from app.engine.offload import Offload
from app.engine.placement import Placement, Share
from app.engine.sizes import Sizes

MIB = 1 << 20
SIZES = Sizes(n_context=0, n_cells=0, n_slots=2, n_batch=16, n_rows=2, n_threads=1)


class Machine:
    """GPUs of so many free MiB. Where layers stay behind, computing takes twice as much."""

    def __init__(self, *free: int, n_compute: int = 30) -> None:
        self.free, self.n_compute = free, n_compute
        self.asked: list[Offload] = []
        self.sizes: list[Sizes] = []

    def devices(self) -> list[Device]:
        gpus = [Device(f"GPU{i}", "", True, n * MIB) for i, n in enumerate(self.free)]
        return [*gpus, Device("CPU", "", False, 1 << 40)]

    def tensors(self, _: Path) -> list[tuple[str, int]]:
        sizes = {"token_embd.weight": 70, "blk.0.a": 60, "blk.0.b": 40, "blk.1.a": 100, "output.weight": 50}
        return [(name, n * MIB) for name, n in sizes.items()]

    def backend(self, model: LlamaModel, sizes: Sizes) -> "Measured":
        self.asked.append(model.offload)
        self.sizes.append(sizes)
        n = self.n_compute * (1 if model.offload.gpu_layers == "all" else 2) * MIB
        main = model.offload.main_gpu
        gpus = [Share(f"GPU{i}", "", 1, 0, 0, n) for i in range(len(self.free)) if main in (None, i)]
        return Measured(Placement((*gpus, Share("CPU", "", 3 - len(gpus), 0, 0, 0)), flash_attn=True))


class Measured:
    """What a backend tells that was made over a model without its weights."""

    def __init__(self, placement: Placement) -> None:
        self.placement, self.n_cache = placement, 20 * MIB

    def close(self) -> None:
        pass


@pytest.fixture
def path(toy_folder: Path) -> Path:
    return toy_folder / "toy-spm.gguf"


def fitting(machine: Machine, path: Path, monkeypatch: pytest.MonkeyPatch, offload: Offload | None = None) -> object:
    monkeypatch.setattr(fit, "ggml", machine)
    monkeypatch.setattr(fit, "LlamaBackend", machine.backend)
    return fit.settled(path, offload or Offload(), SIZES).gpu_layers


@pytest.mark.parametrize(
    ("free", "n", "n_measured"),
    [
        (1324, 3, 1),  # 110 + 110 + 50, 30 to compute in, 1024 of margin
        (1323, 2, 2),
        (1244, 2, 2),  # 110 + 50 beside 60 and the margin
        (1243, 1, 2),  # two would fit beside 30, not beside the 60 that it then takes
        (1134, 1, 2),
        (1103, 0, 2),
        (0, 0, 2),
    ],
)
def test_as_many_layers_as_fit_beside_cache_computing_and_margin(
    free: int, n: int, n_measured: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(free)
    assert fitting(machine, path, monkeypatch) == n
    assert len(machine.asked) == n_measured


def test_it_is_measured_in_the_context_that_will_be_served(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(5000)
    fitting(machine, path, monkeypatch)
    assert (machine.sizes[0].n_context, machine.sizes[0].n_cells) == (8192, 16384)


def test_a_cache_in_main_memory_leaves_room(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fitting(Machine(1304), path, monkeypatch) == 2
    assert fitting(Machine(1304), path, monkeypatch, Offload(kv_offload=False)) == 3


@pytest.mark.parametrize(
    ("offload", "n"),
    [
        (Offload(), 3),  # two thirds of the memory, two of three layers
        (
            Offload(tensor_split=(1, 2)),
            2,
        ),  # of three, a block and the output on the second: 160 in 146
        (Offload(tensor_split=(1,)), 3),
        (Offload(tensor_split=(0, 1)), 1),
        (Offload(main_gpu=0), 3),
        (Offload(main_gpu=1), 1),
    ],
)
def test_each_gpu_has_its_share_as_it_is_asked(
    offload: Offload, n: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fitting(Machine(2400, 1200), path, monkeypatch, offload) == n


def test_no_gpu_no_layers_and_nothing_is_measured(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    assert fitting(machine, path, monkeypatch) == 0
    assert machine.asked == []


@pytest.mark.parametrize("asked", ["all", 0, 2])
def test_what_is_asked_by_number_is_not_measured(asked: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(5000)
    assert fitting(machine, path, monkeypatch, Offload(gpu_layers=asked)) == asked
    assert machine.asked == []
