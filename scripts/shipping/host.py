"""The machine that packs: its programs, its mirror, its pip, and a clean Debian made from them.

Owns where packages come from, as the machine is set up; no address is written here or anywhere else.
"""

import configparser
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRUSTED = "etc/ssl/certs/ca-certificates.crt"
"""Where Debian keeps whom it trusts."""
PIP_KEYS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout")


class Failure(Exception):
    """A package that cannot be made or does not do what it should; the message says which, and what to do."""


def say(text: str) -> None:
    print(text, flush=True)


def need(packages: Mapping[str, str]) -> None:
    """Programs and the packages that bring them; and root, to change roots. Raises Failure where one is missing."""
    if os.geteuid() != 0:
        raise Failure("this makes and enters a Debian root: run it as root")
    missing = [package for program, package in packages.items() if not shutil.which(program)]
    if missing:
        raise Failure(f"missing: apt install {' '.join(missing)}")


def model(named: Path | None) -> Path:
    """The file to complete with; where none is named, the catalogue's first."""
    if named is None:
        get = ROOT / "scripts/get_model"
        named = Path(subprocess.run([get], stdout=subprocess.PIPE, text=True, check=True).stdout.strip())
    return named.resolve()


def clean_root(folder: Path) -> Path:
    """The least Debian, of this machine's release and from its mirror, that trusts whom this machine trusts."""
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    say(f"debootstrap: a clean {release}")
    command = ["debootstrap", "--variant=minbase", "--include=ca-certificates", release, str(folder), mirror(release)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failure(f"debootstrap failed:\n{done.stdout[-2000:]}{done.stderr[-1000:]}")
    for leftover in ("var/cache/apt", "var/lib/apt/lists"):
        shutil.rmtree(folder / leftover)
        (folder / leftover).mkdir()
    shutil.copyfile(pip_settings().get("cert", f"/{TRUSTED}"), folder / TRUSTED)
    return folder


def mirror(release: str) -> str:
    """The one that apt itself would ask for this release."""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(ORIGIN)", "Created-By: Packages"]
    for line in subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines():
        address, of, *_ = line.split()
        if of == release:
            return address
    raise Failure(f"apt has no source for {release}")


def pip_settings() -> dict[str, str]:
    """What pip is told here, by files and variables."""
    told = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(told, capture_output=True, text=True, check=True).stdout
    return dict(re.findall(r"^(?:global|install|:env:)\.([\w-]+)='(.*)'$", lines, re.MULTILINE))


def write_pip_settings(path: Path) -> Path:
    """A pip.conf by which a container finds the packages where this machine does; folders here are not there."""
    kept = configparser.ConfigParser(interpolation=None)
    kept["global"] = {"cert": f"/{TRUSTED}"}
    for key, value in pip_settings().items():
        reachable = " ".join(word for word in value.split() if not word.startswith("file:"))
        if key in PIP_KEYS and reachable:
            kept["global"][key] = reachable
    with path.open("w") as file:
        kept.write(file)
    return path
