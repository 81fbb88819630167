"""What a server says of itself, and what the system says of its memory."""

import asyncio
import json
import re
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

from scripts.benchmark.servers import Server
from scripts.endurance.wishes import Model

IDLE_SECONDS = 60.0


class Reading(NamedTuple):
    """At one moment: sequences, requests, cells; counts since the start; memory in bytes."""

    running: int
    waiting: int
    cells: int
    preemptions: int
    faults: int
    memory: int

    @property
    def is_idle(self) -> bool:
        return not (self.running or self.waiting or self.cells)


NAMES = (
    "segue_sequences_running", "segue_requests_waiting", 'segue_cache_cells{state="running"}',
    "segue_preemptions_total", "segue_faults_total", "process_resident_memory_bytes",
)  # fmt: skip


def parsed(text: str) -> Reading:
    """A reading of Prometheus' text. Raises KeyError where something is missing."""
    values = dict(re.findall(r"^([^#\s]\S*) (\S+)$", text, re.MULTILINE))
    return Reading(*(int(float(values[name])) for name in NAMES))


def _get(server: Server, path: str) -> str:
    with urllib.request.urlopen(f"http://{server.host}:{server.port}{path}", timeout=60) as answer:
        return str(answer.read(), "utf-8")


async def read(server: Server) -> Reading:
    """How it stands."""
    return parsed(await asyncio.to_thread(_get, server, "/metrics"))


async def model(server: Server) -> Model:
    """What it serves."""
    meta = json.loads(await asyncio.to_thread(_get, server, "/v1/models"))["data"][0]["meta"]
    return Model(meta["n_vocab"], meta["supports_suffix"])


def _settled(server: Server) -> Reading:
    deadline = time.monotonic() + IDLE_SECONDS
    while not (reading := parsed(_get(server, "/metrics"))).is_idle and time.monotonic() < deadline:
        time.sleep(0.1)
    return reading


async def idle(server: Server) -> Reading:
    """How it stands when nothing runs any more; or, if that takes too long, with what still does."""
    return await asyncio.to_thread(_settled, server)


def peak(server: Server) -> int:
    """The most memory that it has had, in bytes."""
    assert server.process
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0])
