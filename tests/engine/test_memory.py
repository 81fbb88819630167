"""What models may take of a machine's memory, and that it is given back."""

from pathlib import Path

from app.engine import memory
from app.engine.ggml import Device, Ggml

GIB = 1 << 30


class Machine(Ggml):
    """As much of ggml as a budget asks for."""

    def __init__(self, *devices: Device) -> None:
        self._devices = devices

    def devices(self) -> list[Device]:
        return list(self._devices)


def test_a_budget_is_most_of_the_memory_and_what_gpus_have_free(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {16 << 20} kB\nMemAvailable: {1 << 20} kB\n")
    cpu = Device("CPU", "a processor", False, 9 * GIB)
    gpus = [Device("CUDA0", "a GPU", True, 24 * GIB), Device("CUDA1", "a full one", True, GIB // 2)]
    assert memory.budget(Machine(cpu), tmp_path) == int(0.8 * 16 * GIB)
    assert memory.budget(Machine(cpu, *gpus), tmp_path) == int(0.8 * 16 * GIB) + 23 * GIB


def test_where_a_machine_does_not_tell_of_its_memory_nothing_ends_it(tmp_path: Path) -> None:
    assert memory.budget(Machine(), tmp_path) > 1 << 50


def test_memory_is_given_back_wherever_the_library_can() -> None:
    memory.give_back()
