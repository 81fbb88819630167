"""What a source is: `hf:`, `https:`, `pypi:`, or a path.

A source's module is imported when it is asked for: what speaks to the hub takes a third of a second.
"""

import os
from contextlib import suppress
from pathlib import Path

from app.catalogue.remote import Remote
from app.errors import SettingsError

_KINDS = ("hf", "pypi", "https", "http")


def is_path(text: str) -> bool:
    """Whether it is a path, rather than a name or another source."""
    return "/" in text and not is_source(text)


def is_file(text: str) -> bool:
    """Whether a file is called so; one that no system would let be called so is none."""
    with suppress(OSError):
        return Path(text).is_file()
    return False


def path_of(text: str) -> Path:
    """A path of whoever wrote it, his home spelt out. Raises SettingsError where there is no such home."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise SettingsError(f"{text}: there is no such home folder; write the path out.") from None


def is_source(text: str) -> bool:
    """Whether it says where a model is, on other machines."""
    kind, colon, _ = text.partition(":")
    return bool(colon) and kind in _KINDS


def find(source: str) -> list[Remote]:
    """The files that a source names, first the one that is served. Raises StartError."""
    kind, _, rest = source.partition(":")
    match kind:
        case "hf":
            os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when it is imported
            from app.catalogue import hub

            return hub.find(rest)
        case "pypi":
            from app.catalogue import package

            return package.find(rest)
        case "https" | "http":
            from app.catalogue import web

            return web.find(source)
        case _:
            from app.catalogue import local

            return local.find(source)
