"""What the system tells, of machines and containers that are made up."""

from pathlib import Path

import pytest

from app.engine import machine
from app.engine.machine import Memory, Processor

GIB = 1 << 30


@pytest.fixture(autouse=True)
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")


def system(root: Path, files: dict[str, str]) -> Path:
    """A root with these files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def meminfo(total: int, available: int) -> str:
    return f"MemTotal: {total << 20} kB\nMemFree: 5 kB\nMemAvailable: {available << 20} kB\nHugePages_Total: 0\n"


def test_a_processor_has_a_name_and_features(tmp_path: Path) -> None:
    core = "processor\t: 0\nmodel name\t: Some CPU @ 2GHz\nflags\t\t: fma avx2 amx_int8\n\n"
    system(tmp_path, {"proc/cpuinfo": core * 2})
    assert machine.processor(tmp_path) == Processor("Some CPU @ 2GHz", frozenset({"fma", "avx2", "amx_int8"}))


def test_an_arm_processor_tells_its_features_otherwise(tmp_path: Path) -> None:
    system(tmp_path, {"proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimddp i8mm\n"})
    assert machine.processor(tmp_path) == Processor("", frozenset({"fp", "asimddp", "i8mm"}))


def test_nothing_is_known_of_a_system_that_tells_nothing(tmp_path: Path) -> None:
    assert machine.processor(tmp_path) == Processor("", frozenset())
    assert machine.memory(tmp_path) is None
    assert machine.processor_quota(tmp_path) is None
    assert machine.nvidia_gpus(tmp_path) == []


def test_gpus_are_named_by_their_driver(tmp_path: Path) -> None:
    told = "Model: \t\t NVIDIA A100\nIRQ:   \t\t 42\n"
    system(tmp_path, {f"proc/driver/nvidia/gpus/0000:0{i}:00.0/information": told for i in range(2)})
    assert machine.nvidia_gpus(tmp_path) == ["NVIDIA A100"] * 2


@pytest.mark.parametrize(
    ("files", "n"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        # The own group has no limit; the one above it has.
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
                "sys/fs/cgroup/a/cpu.max": "400000 100000\n",
            },
            4.0,
        ),
        # A container's own group is the first one that it sees.
        ({"proc/self/cgroup": "0::/docker/77\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2.0),
        ({"proc/self/cgroup": "0::/../x\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2.0),
        (
            {
                "proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/c\n",
                "sys/fs/cgroup/cpu/c/cpu.cfs_quota_us": "50000\n",
                "sys/fs/cgroup/cpu/c/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
    ],
)
def test_a_containers_share_of_the_processors(tmp_path: Path, files: dict[str, str], n: float | None) -> None:
    assert machine.processor_quota(system(tmp_path, files)) == n


@pytest.mark.parametrize(
    ("files", "room"),
    [
        ({}, Memory(10 * GIB, 16 * GIB)),
        ({"sys/fs/cgroup/memory.max": "max\n"}, Memory(10 * GIB, 16 * GIB)),
        (
            {
                "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
                "sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
                "sys/fs/cgroup/memory.stat": f"anon {GIB}\ninactive_file {2 * GIB}\n",
            },
            Memory(3 * GIB, 4 * GIB),
        ),
        (
            {
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{GIB}\n",
                "sys/fs/cgroup/memory/memory.stat": "inactive_file 5\ntotal_inactive_file 7\n",
            },
            Memory(3 * GIB + 7, 4 * GIB),
        ),
        # The group around it has less.
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": f"{64 * GIB}\n",
                "sys/fs/cgroup/a/memory.max": f"{5 * GIB}\n",
            },
            Memory(5 * GIB, 5 * GIB),
        ),
        # Without a limit version 1 tells a number beyond all memory.
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, Memory(10 * GIB, 16 * GIB)),
    ],
)
def test_the_memory_is_the_machines_or_a_groups_that_is_less(
    tmp_path: Path, files: dict[str, str], room: Memory
) -> None:
    groups = {"proc/self/cgroup": "1:memory:/\n0::/\n", "proc/meminfo": meminfo(16, 10)}
    assert machine.memory(system(tmp_path, groups | files)) == room


def test_what_is_no_number_is_no_limit(tmp_path: Path) -> None:
    group = "sys/fs/cgroup"
    files = {"proc/self/cgroup": "0::/\nodd\n", f"{group}/cpu.max": "5 0\n", f"{group}/memory.max": "lots\n"}
    system(tmp_path, files | {"proc/meminfo": meminfo(8, 5)})
    assert machine.processor_quota(tmp_path) is None
    assert machine.memory(tmp_path) == Memory(5 * GIB, 8 * GIB)
