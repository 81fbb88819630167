"""The image on trial, built and run without a container engine: buildah in a chroot, on a base made by debootstrap.

Owns the way from the Containerfile to a running container. What a server must do is `trial`'s.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.shipping import trial
from scripts.shipping.host import ROOT, Failure, clean_root, model, need, say, write_pip_settings

NEEDS = {"buildah": "buildah", "debootstrap": "debootstrap"}
BASE, IMAGE = "localhost/segue-base", "localhost/segue"
NOT_IN_IT = ("root/.cache", "usr/bin/g++", "usr/bin/cc", "etc/pip.conf", "opt/segue/requirements")
EMPTY_IN_IT = ("var/lib/apt/lists", "var/cache/apt", "models")
PROCESSORS = "libggml-cpu-*.so"


class Buildah:
    """buildah with its images in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.start = ["buildah", "--root", str(folder / "images"), "--runroot", str(folder / "run")]
        self.environment = {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs"}

    def __call__(self, *arguments: str) -> str:
        """What it prints, for the next command. Its errors are seen."""
        command, told = [*self.start, *arguments], os.environ | self.environment
        return subprocess.run(command, env=told, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    def build(self, *arguments: str) -> None:
        """As called, with its output seen."""
        if subprocess.run([*self.start, *arguments], env=os.environ | self.environment, check=False).returncode:
            raise Failure("buildah failed: its words are above")

    @contextmanager
    def container(self, image: str) -> Iterator[str]:
        name = self("from", image)
        try:
            yield name
        finally:
            self("rm", name)


def make_base(buildah: Buildah, folder: Path) -> None:
    root = clean_root(folder / "base")
    with buildah.container("scratch") as container:
        buildah("copy", "-q", container, str(root), "/")
        buildah("commit", "-q", container, BASE)
    shutil.rmtree(root)


def build_image(buildah: Buildah, folder: Path) -> None:
    """By the Containerfile, with this machine's base and pip settings, which leave no trace in the image."""
    began = time.monotonic()
    told = write_pip_settings(folder / "pip.conf")
    buildah.build(
        "build", "--format", "docker", "--layers", "-f", str(ROOT / "Containerfile"),
        "--ignorefile", str(ROOT / ".containerignore"), "--build-arg", f"BASE_IMAGE={BASE}",
        "--secret", f"id=pip,src={told}", "-t", IMAGE, str(ROOT),
    )  # fmt: skip
    say(f"built in {time.monotonic() - began:.0f} s")


def settings_of(buildah: Buildah) -> dict[str, Any]:
    """How the image is run: user, entry point, health check."""
    told: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", IMAGE))["Docker"]["config"]
    return told


def n_bytes(folder: Path) -> int:
    return int(subprocess.check_output(["du", "-sxb", str(folder)], text=True).split()[0])


def check_contents(buildah: Buildah) -> None:
    """What is in the image, and how large it is. Raises Failure where something is that should not be."""
    with buildah.container(IMAGE) as container, buildah.container(BASE) as base:
        root, below = Path(buildah("mount", container)), Path(buildah("mount", base))
        left = [name for name in NOT_IN_IT if (root / name).exists()]
        left += [name for name in EMPTY_IN_IT if any((root / name).iterdir())]
        if left:
            raise Failure(f"left in the image: {', '.join(left)}")
        whole, base_size = n_bytes(root), n_bytes(below)
        n_kinds = len(list((root / "opt/segue/.venv").rglob(PROCESSORS)))
        if n_kinds < 2:
            raise Failure("the image runs on this kind of processor alone")
    say(f"size: {whole / 1e6:.0f} MB, of which {base_size / 1e6:.0f} are the base; kernels for {n_kinds} processors")


def leaf(pid: int) -> int:
    """The last of a chain of processes: what buildah started, where it is `pid`."""
    children = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).split()
    return leaf(int(children[0])) if children else pid


def user_of(pid: int) -> int:
    """The process's effective user."""
    return Path(f"/proc/{pid}").stat().st_uid


def try_image(buildah: Buildah, file: Path) -> None:
    told, port = settings_of(buildah), trial.free_port()
    with buildah.container(IMAGE) as container, tempfile.TemporaryDirectory() as models:
        Path(models).chmod(0o755)
        shutil.copy(file, models)
        start = [*buildah.start, "run", "--env", f"SEGUE_PORT={port}"]
        volume = ["--volume", f"{models}:/models:ro"]
        command = [*start, *volume, container, "--", *told["Entrypoint"]]
        check = [*start, container, "--", *told["Healthcheck"]["Test"][1:]]

        def is_healthy() -> bool:
            quiet = subprocess.DEVNULL
            environment = os.environ | buildah.environment
            return not subprocess.run(check, env=environment, stdout=quiet, stderr=quiet, check=False).returncode

        segue = trial.Segue(command, port, leaf, buildah.environment)
        with trial.running(segue):
            segue.wait(is_healthy)
            healthy, user = segue.seconds, user_of(segue.pid)
            segue.complete(trial.PROMPTS[0], 1)
            say(
                f"healthy by its own check after {healthy:.1f} s, first answer after {segue.seconds:.1f} s, user {user}"
            )
            if f"{user}:{user}" != told["User"]:
                raise Failure(f"it runs as user {user}, not as {told['User']}")
            (kernels,) = Path(buildah("mount", container)).glob("opt/segue/.venv/lib/*/site-packages/llama_cpp/lib")
            trial.compare(segue.texts(), file, kernels)
            trial.ends_in_order(segue)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/container-test", description="Build the image, run it, and try it.")
    parser.add_argument("--model", type=Path, help="GGUF file to complete with [the default model]")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where images stay, for a next run that builds less")
    chosen = parser.parse_args()
    try:
        need(NEEDS)
        with tempfile.TemporaryDirectory(prefix="segue-image-") as scratch:
            folder = chosen.keep or Path(scratch)
            folder.mkdir(exist_ok=True)
            buildah = Buildah(folder)
            if BASE not in buildah("images", "--format", "{{.Name}}").splitlines():
                make_base(buildah, folder)
            build_image(buildah, folder)
            check_contents(buildah)
            try_image(buildah, model(chosen.model))
    except Failure as failure:
        sys.exit(f"scripts/container-test: {failure}")
    say("the image is good")


if __name__ == "__main__":
    main()
