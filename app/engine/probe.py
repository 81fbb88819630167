"""A trial decode in a process of its own: what a build, a file or a machine does to a model ends that process alone.

Owns the child and what its end means. It runs to its end before the model is loaded for good, since two copies of the
weights at once may not fit into memory.
"""

import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence as Ordered
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import msgspec
import numpy as np

from app.engine.backend import Chunk
from app.engine.fit import settled
from app.engine.llama import LlamaBackend, LlamaModel, Progress
from app.engine.offload import Offload
from app.engine.sizes import Sizes
from app.errors import GenerationFailed, ModelError, SettingsError, StartError

PATIENCE_SECONDS = 120.0
LOOK_SECONDS = 0.2
"""How often it is asked whether the child is still wanted."""
SLOWEST_READ = 32 << 20
"""Bytes a second that any disk reads: a large file has longer than PATIENCE_SECONDS."""
REFUSALS: dict[int, type[StartError]] = {3: ModelError, 4: SettingsError}
"""The child's exit codes where it says on stdout what is wrong."""

_CHUNKS = ((0, 2), (2, 1))
"""Start and length of what is decoded: a batch and a single token take different kernels."""
_PR_SET_PDEATHSIG = 1
_CODE = """
import sys
sys.path.insert(0, {!r})
import app
del sys.path[0]
from app.engine.probe import main
sys.exit(main(sys.argv[1]))
"""

_BUILD = "try --no-repack, or build llama.cpp again for this processor by scripts/install"
_MEMORY = "try --no-repack, fewer --gpu-layers, or a model of fewer bits"
_DEATHS = {
    signal.SIGKILL: ("was killed, as the system does where memory runs out", _MEMORY),
    signal.SIGILL: ("met an instruction that this processor does not have", _BUILD),
    signal.SIGBUS: ("could not read the file to its end", "download it again, or check the disk"),
    signal.SIGABRT: ("was given up by llama.cpp", f"{_BUILD}, or fewer --gpu-layers"),
}


class Trial(NamedTuple):
    """What to load, and how. sizes: of the context that is to be served, for which layers have to leave room."""

    path: str
    offload: Offload
    sizes: Sizes


def check(
    trial: Trial,
    child: Ordered[str] | None = None,
    patience: float = PATIENCE_SECONDS,
    progress: Progress | None = None,
) -> Offload:
    """Decode a few tokens in a child process; returns the offload that it did so with, `auto` now a number.

    Raises ModelError, with the remedy, where it does not decode, and SettingsError where the sizes do not go together.
    child: the command that takes the trial as its last argument. patience: in seconds, beside what reading takes.
    progress: asked now and then with 0 whether to go on.
    """
    limit = patience + Path(trial.path).stat().st_size / SLOWEST_READ
    with subprocess.Popen(
        [*(child or _child()), msgspec.json.encode(trial).decode()],
        env=os.environ | {"GGML_NO_BACKTRACE": "1"},  # it would call a debugger, and wait for it
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as running:  # fmt: skip
        try:
            said, complaint = _outcome(running, limit, progress)
        except subprocess.TimeoutExpired:
            raise ModelError(f"{trial.path}: a trial decode did not end in {limit:.0f} s; {_BUILD}.") from None
        finally:
            running.kill()
    if refusal := REFUSALS.get(running.returncode):
        raise refusal(os.fsdecode(said).strip())
    if running.returncode:
        raise ModelError(f"{trial.path}: a trial decode {_death(running.returncode, complaint)}.")
    return replace(trial.offload, gpu_layers=msgspec.json.decode(said))


def _outcome(running: subprocess.Popen[bytes], limit: float, progress: Progress | None) -> tuple[bytes, bytes]:
    """What a child has said at its end, and complained of. Raises TimeoutExpired, or ModelError if it is called off."""
    deadline = monotonic() + limit
    while True:
        left = deadline - monotonic()
        try:
            return running.communicate(timeout=min(left, LOOK_SECONDS) if progress else left)
        except subprocess.TimeoutExpired:
            if monotonic() >= deadline:
                raise
            if progress and progress(0.0) is False:
                raise ModelError("the load was called off.") from None


def _child() -> list[str]:
    """How this program starts itself as a probe. Frozen into one file it is its own interpreter (`segue probe`)."""
    if getattr(sys, "frozen", False):
        return [sys.executable, "probe"]
    # Not -m: the folder that a server is started in may have an `app` of its own.
    return [sys.executable, "-P", "-c", _CODE.format(str(Path(__file__).parents[2]))]


def _death(code: int, stderr: bytes) -> str:
    """What became of a child, and the remedy."""
    if code > 0:
        return f"failed: {_last_line(stderr)}; {_BUILD}"
    name = signal.Signals(-code).name
    told, remedy = _DEATHS.get(signal.Signals(-code), ("crashed", _BUILD))
    # llama.cpp's assertions are written before it gives up.
    said = f": {_last_line(stderr)}" if -code == signal.SIGABRT else ""
    return f"{told} ({name}){said}; {remedy}"


def _last_line(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1].strip().rstrip(".") if lines else "it gave no reason"


def main(word: str) -> int:
    """The child's side: a trial as JSON to an exit code."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core would be as large as the model
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    trial = msgspec.json.decode(word, type=Trial)
    try:
        offload = settled(Path(trial.path), trial.offload, trial.sizes)
        _decode(trial._replace(offload=offload))
    except StartError as error:
        sys.stdout.buffer.write(os.fsencode(error.message))
        return next(code for code, kind in REFUSALS.items() if isinstance(error, kind))
    sys.stdout.buffer.write(msgspec.json.encode(offload.gpu_layers))
    return 0


def _decode(trial: Trial) -> None:
    path = Path(trial.path)
    model = LlamaModel(path, trial.offload)
    sizes = Sizes(n_context=64, n_cells=256, n_slots=1, n_batch=16, n_rows=1, n_threads=trial.sizes.n_threads)
    backend = LlamaBackend(model, sizes)
    try:
        rows = [backend.decode([Chunk(0, start, [0] * n, 1)]).copy() for start, n in _CHUNKS]
    except GenerationFailed as error:
        raise ModelError(f"{path}: a trial decode failed: {error.message}; segue needs a model that writes.") from None
    if np.isnan(rows).any():
        raise ModelError(f"{path}: a trial decode gave logits that are no numbers; download it again, or {_BUILD}.")
