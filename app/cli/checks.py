"""Checks of what is around llama.cpp: settings, Python and its packages, threads, the port."""

import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from importlib import metadata

from app.api import server
from app.cli.findings import Finding, refusal, well
from app.cli.flags import NAMES
from app.engine import machine
from app.engine.build import FEATURES
from app.errors import StartError
from app.settings import PREFIX, Settings

PACKAGES = ("llama-cpp-python", "litestar", "msgspec", "numpy", "uvicorn")
SCRIPTS = frozenset({"CACHE", "MODELS"})
"""Variables of scripts and tests."""


def variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    """SEGUE_* variables that nothing reads."""
    known = [name.upper() for name in NAMES]
    for name in sorted(key.removeprefix(PREFIX) for key in environment if key.startswith(PREFIX)):
        if name not in SCRIPTS and name.upper() not in known:
            near = get_close_matches(name.upper(), known, n=1)
            remedy = f"is {PREFIX}{near[0]} meant?" if near else "unset it; segue serve --help lists the settings"
            yield Finding("environment", "warn", f"{PREFIX}{name} is no setting: nothing reads it", remedy)


def python() -> Iterator[Finding]:
    """Python, and the packages that matter."""
    yield well("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    versions: dict[str, str] = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):  # in one executable they have no metadata
            versions[name] = metadata.version(name)
    told = ", ".join(f"{name} {version}" for name, version in versions.items()) or "all in one executable"
    wanted, found = _pinned_llama(), versions.get("llama-cpp-python")
    if wanted and found != wanted:
        remedy = f"scripts/install; llama.cpp's functions change from release to release, and these are {wanted}'s"
        yield Finding("packages", "fail", told, remedy)
    else:
        yield well("packages", told)


def _pinned_llama() -> str | None:
    """The one version of llama-cpp-python that segue goes with, as its own metadata say."""
    with suppress(metadata.PackageNotFoundError):
        for requirement in metadata.requires("segue") or ():
            if found := re.fullmatch(r"llama-cpp-python==([\w.]+)", requirement.replace(" ", "")):
                return found[1]
    return None


def threads(n_threads: int, n_processors: int, quota: float | None) -> Finding:
    """Threads against processors, and the share of them that a container has."""
    told = f"{n_threads} on {n_processors} processors"
    n_useful = min(n_processors, max(int(quota or n_processors), 1))
    if quota is not None:
        told += f", of which the container may use {quota:g}"
    if n_threads > n_useful:
        return Finding("threads", "warn", f"{told}: they wait for one another", f"--threads {n_useful}")
    return well("threads", told)


def port(settings: Settings) -> Finding:
    """Whether a server could listen where the settings say."""
    try:
        server.bind(settings.host, settings.port).close()
    except StartError as error:
        return refusal("port", error)
    host = settings.host or "every address"
    return well("port", f"{settings.port} of {host} is free" if settings.port else f"any free one of {host}")


def processor(found: machine.Processor, used: frozenset[str]) -> Finding:
    """What a processor has, and what llama.cpp was built to use of it."""
    has = [name for feature, name in FEATURES.items() if feature in found.features]
    told = f"{found.name or platform.machine()}; used: {', '.join(name for name in has if name in used) or 'nothing'}"
    if idle := [name for name in has if name not in used]:
        remedy = "scripts/install builds llama.cpp for this very processor"
        return Finding("processor", "warn", f"{told}; not used: {', '.join(idle)}", remedy)
    return well("processor", told)
