"""What the system tells of this machine, and of the container that the process runs in.

Owns where it is told: /proc and /sys/fs/cgroup of both versions, sysctl on macOS. Refuses to judge it. What is not told
is None, or empty. root: where these folders lie.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")


class Processor(NamedTuple):
    """Its name, and its features as Linux calls them."""

    name: str
    features: frozenset[str]


class Memory(NamedTuple):
    """Bytes that this process may still take, and all that it may ever have."""

    n_free: int
    n_most: int


def processor(root: Path = ROOT) -> Processor:
    """The processor."""
    if sys.platform == "darwin":
        return Processor(_sysctl("machdep.cpu.brand_string"), _mac_features())
    lines = [line.partition(":") for line in _read(root / "proc/cpuinfo").splitlines()]
    told = {key.strip(): value.strip() for key, _, value in reversed(lines)}
    return Processor(told.get("model name", ""), frozenset((told.get("flags") or told.get("Features", "")).split()))


def _mac_features() -> frozenset[str]:
    """What an Apple processor has, by Linux's names."""
    names = {"hw.optional.arm.FEAT_DotProd": "asimddp", "hw.optional.arm.FEAT_I8MM": "i8mm"}
    return frozenset(name for key, name in names.items() if _sysctl(key) == "1")


def _sysctl(key: str) -> str:
    done = subprocess.run(["/usr/sbin/sysctl", "-n", key], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def nvidia_gpus(root: Path = ROOT) -> list[str]:
    """NVIDIA's GPUs, as the driver names them."""
    told = [_read(path) for path in sorted(root.glob("proc/driver/nvidia/gpus/*/information"))]
    return [line.partition(":")[2].strip() for text in told for line in text.splitlines() if line.startswith("Model")]


def processor_quota(root: Path = ROOT) -> float | None:
    """The processors' worth of time that the container may use; None where there is no such limit."""
    shares = [
        *(_share(*_read(file).split()) for file in _files("cpu.max", "", root)),
        *(
            _share(_read(file), _read(file.with_name("cpu.cfs_period_us")))
            for file in _files("cpu.cfs_quota_us", "cpu", root)
        ),
    ]
    return min((share for share in shares if share is not None), default=None)


def _share(quota: str = "", period: str = "") -> float | None:
    """Microseconds of processor time in a period of so many: no limit is `max`, or -1."""
    if not (quota.strip().isdigit() and period.strip().isdigit() and int(period)):
        return None
    return int(quota) / int(period)


def memory(root: Path = ROOT) -> Memory | None:
    """The memory: the machine's, or where that is less, the container's."""
    if sys.platform == "darwin":
        n_most = int(_sysctl("hw.memsize") or 0)
        return Memory(n_most, n_most) if n_most else None
    told = _table(root / "proc/meminfo")
    if "MemAvailable" not in told:
        return None
    found = [Memory(told["MemAvailable"] << 10, told["MemTotal"] << 10)]
    found += filter(None, map(_room, _files("memory.max", "", root)))
    found += filter(None, map(_room, _files("memory.limit_in_bytes", "memory", root)))
    return Memory(min(each.n_free for each in found), min(each.n_most for each in found))


def _room(limit: Path) -> Memory | None:
    """What a group may have; files that were read and may be forgotten again do not count."""
    if not (most := _read(limit).strip()).isdigit():
        return None
    used = _read(limit.with_name(_USED[limit.name])).strip()
    stat = _table(limit.with_name("memory.stat"))
    n_idle = stat.get("total_inactive_file", stat.get("inactive_file", 0))
    return Memory(int(most) - int(used or 0) + n_idle, int(most))


_USED = {"memory.max": "memory.current", "memory.limit_in_bytes": "memory.usage_in_bytes"}


def _files(name: str, controller: str, root: Path) -> Iterator[Path]:
    """The file of that name in each group that this process is in, up to the first. controller: "" in version 2."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / controller
            own = Path(os.path.normpath(top / path.lstrip("/")))
            # A container sees its own group as the first, whatever its path is said to be.
            groups = [own, *own.parents] if own.is_relative_to(top) else [top]
            yield from (group / name for group in groups if group.is_relative_to(top) and (group / name).is_file())


def _table(path: Path) -> dict[str, int]:
    """Names and numbers, a pair a line."""
    lines = [line.split() for line in _read(path).splitlines()]
    return {words[0].rstrip(":"): int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
