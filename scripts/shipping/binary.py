"""dist/segue: Python, the packages, llama.cpp and segue in one executable, and its trial on a Debian without Python.

Owns what goes into the file. What a server must do is `trial`'s.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from app.cli import COMMANDS
from scripts.shipping import trial
from scripts.shipping.host import ROOT, Failure, clean_root, model, need, say

NEEDS = {"debootstrap": "debootstrap", "unshare": "util-linux"}
BINARY = ROOT / "dist" / "segue"
SOURCES = ("app", "requirements", "scripts", "pyproject.toml")
NOBODY = "65534:65534"
HOME = "srv/segue"
"""Where the executable lies in the clean root."""

PYINSTALLER = (
    "--onefile", "--name=segue", "--log-level=ERROR", "--noconfirm",
    "--collect-binaries=llama_cpp",  # found by llama_cpp and by llama.cpp at the start, not by any import
    "--copy-metadata=litestar",  # it reads its own version there
    "--hidden-import=uvicorn.lifespan.on",
    "--hidden-import=uvicorn.loops.uvloop",
    "--hidden-import=uvicorn.protocols.http.httptools_impl",
    "--add-data=app/catalogue/catalogue.toml:app/catalogue",
    "--collect-submodules=huggingface_hub",  # it imports its own parts by name
    "--exclude-module=hf_xet",  # a transfer of its own, which is not asked for
    *(f"--hidden-import=app.cli.{name}" for name in COMMANDS),  # imported when they are called
    "--exclude-module=faker",  # litestar's examples, for a schema that segue writes itself
    "--exclude-module=polyfactory",
    "--exclude-module=tkinter",
)  # fmt: skip
"""uvicorn chooses these three by name (app/api/server.py)."""


def run(command: Sequence[str | Path], folder: Path) -> None:
    if subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, check=False).returncode:
        raise Failure(f"{Path(command[0]).name} failed: its words are above")


def build() -> None:
    """In a copy of the checkout, whose .venv stays as it is: what is built for every processor is slower here."""
    with tempfile.TemporaryDirectory(prefix="segue-binary-") as scratch:
        copy = Path(scratch)
        for name in SOURCES:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
        run(["scripts/install-portable"], copy)
        python = copy / ".venv/bin/python"
        pip: list[str | Path] = [python, "-m", "pip", "install", "-qq", "--require-hashes", "--no-deps"]
        run([*pip, "-r", "requirements/ship.lock"], copy)
        places: list[str | Path] = ["--distpath", BINARY.parent, "--workpath", copy / "work", "--specpath", copy]
        run([python, "-m", "PyInstaller", *PYINSTALLER, *places, "app/__main__.py"], copy)
    say(f"{BINARY.relative_to(ROOT)}: {BINARY.stat().st_size / 1e6:.0f} MB")


def inside(root: Path, *command: str) -> list[str]:
    """A command in the clean root, as nobody; what is mounted for it goes with it."""
    enter = 'mount -t proc proc "$0/proc" && cd / && exec chroot --userspec="$1" "$0" "${@:2}"'
    clean = ["env", "-i", "PATH=/usr/bin:/bin", "LANG=C.UTF-8"]
    return ["unshare", "--mount", "bash", "-c", enter, str(root), NOBODY, *clean, *command]


def check_refusal(root: Path, file: Path) -> None:
    """A file that only llama.cpp can refuse is refused by the trial in a child, which is this very executable."""
    cut = root / HOME / "cut.gguf"
    with file.open("rb") as whole:
        cut.write_bytes(whole.read(file.stat().st_size - 100_000))
    command = inside(root, f"/{HOME}/segue", "serve", "--port", "0", "--model", f"/{HOME}/{cut.name}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=trial.READY_SECONDS, check=False)
    cut.unlink()
    if done.returncode != 1 or "not within the file bounds" not in done.stderr or done.stderr.count("\n") != 1:
        raise Failure(f"a model that is cut off was not refused in one line ({done.returncode}):\n{done.stderr}")
    say(f"a model that is cut off is refused: {done.stderr.strip()}")


@contextmanager
def unpacked(scratch: Path, file: Path) -> Iterator[Path]:
    """A clean root with the executable and a model beside it."""
    root = clean_root(scratch / "root")
    if found := [path.name for path in (root / "usr/bin").glob("python*")]:
        raise Failure(f"the root is not clean: {', '.join(found)}")
    home = root / HOME
    home.mkdir(parents=True)
    for each in (BINARY, file):
        shutil.copy(each, home)
    yield root


def check(file: Path) -> None:
    """Serves the model that lies beside it, on a Debian that has no Python."""
    with tempfile.TemporaryDirectory(prefix="segue-root-") as scratch, unpacked(Path(scratch), file) as root:
        port = trial.free_port()
        segue = trial.Segue(inside(root, f"/{HOME}/segue", "serve", "--port", str(port)), port)
        with trial.running(segue):
            segue.wait(segue.answers)
            segue.complete(trial.PROMPTS[0], 1)
            say(f"in a clean root, without Python: first answer {segue.seconds:.1f} s after the start")
            (kernels,) = (root / "tmp").glob("_MEI*/llama_cpp/lib")  # where it has unpacked itself
            trial.compare(segue.texts(), file, kernels)
            trial.ends_in_order(segue)
        check_refusal(root, file)
        if left := [path.name for path in (root / "tmp").iterdir()]:
            raise Failure(f"left in /tmp: {', '.join(left)}")
    say("the executable is good")


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/build-binary", description="Make dist/segue, one executable.")
    parser.add_argument("--check", action="store_true", help="then try it in a clean Debian root (needs root)")
    parser.add_argument("--no-build", action="store_true", help="check the one that is there")
    parser.add_argument("--model", type=Path, help="GGUF file to check with [the default model]")
    chosen = parser.parse_args()
    try:
        if chosen.check:
            need(NEEDS)
        if not chosen.no_build:
            build()
        if chosen.check:
            check(model(chosen.model))
    except Failure as failure:
        sys.exit(f"scripts/build-binary: {failure}")


if __name__ == "__main__":
    main()
