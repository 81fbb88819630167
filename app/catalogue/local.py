"""Files of this machine: a model is copied, all parts of it."""

from collections.abc import Iterator
from pathlib import Path

from app.catalogue.remote import Remote
from app.catalogue.sources import path_of
from app.engine import header, split

_BLOCK = 1 << 20


def find(source: str) -> list[Remote]:
    """The files of the model whose first is at a path. Raises ModelError where that is none."""
    first = path_of(source)
    paths = [first.with_name(name) for name in split.parts_of(first.name)]
    for path in paths:
        header.check(path)
    return [_remote(path) for path in paths]


def _remote(path: Path) -> Remote:
    return Remote(
        file=path.name,
        size=path.stat().st_size,
        sha256=None,
        version=str(path.absolute()),
        resumes=False,
        read=lambda start, scratch: _read(path),
    )


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from iter(lambda: file.read(_BLOCK), b"")
