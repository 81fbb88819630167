"""The catalogue: names of models, where each is had, and what is known of it.

Owns the form of catalogue.toml, segue's own and the user's. Refuses to know what a source means and what is downloaded.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from app.catalogue import filenames
from app.catalogue.sources import path_of
from app.engine import split
from app.errors import SettingsError

BUILT_IN = Path(__file__).with_name("catalogue.toml")

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that can be had. size: bytes of all its files; terms: where the licence is read.

    context: tokens of a request; it and the rest are what these settings are unless the user sets them.
    """

    source: str
    file: str
    about: str = ""
    sha256: Sha256 | tuple[Sha256, ...] | None = None
    size: Annotated[int, Meta(ge=1)] | None = None
    licence: str = ""
    terms: str = ""
    context: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    fim_order: Literal["psm", "spm"] | None = None
    fim_template: str | None = None

    @property
    def files(self) -> list[str]:
        """The files of the model, first the one that is served."""
        return split.parts_of(self.file)

    @property
    def checksums(self) -> list[str | None]:
        """One for each file; None where it is not known."""
        if self.sha256 is None:
            return [None] * len(self.files)
        return [self.sha256] if isinstance(self.sha256, str) else list(self.sha256)


def load(folder: Path) -> dict[str, Entry]:
    """All entries by name: segue's own, and before them those of the folder's catalogue.toml, where it has one.

    Raises SettingsError, which names file, entry and key.
    """
    own = folder / BUILT_IN.name
    try:
        has_own = own.is_file()
    except OSError as error:
        raise SettingsError(f"{own} cannot be read: {error.strerror}.") from None
    return read(BUILT_IN) | (read(own) if has_own else {})


def read(path: Path) -> dict[str, Entry]:
    """The entries of one file. Raises SettingsError."""
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}.") from None
    except RecursionError:
        raise SettingsError(f"{path} is nested too deeply.") from None
    return {name: _entry(path, name, table) for name, table in tables.items()}


def _entry(path: Path, name: str, table: object) -> Entry:
    if not isinstance(table, Mapping):
        raise SettingsError(f"{path}: {name} is {table!r}; it must be a table: [{name}], and its keys below.")
    try:
        entry = msgspec.convert(table, Entry)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        key = place.strip(".`").partition("[")[0]
        shown = f".{key} is {table[key]!r}" if key in table else ""
        raise SettingsError(f"{path}: {name}{shown}: {problem}.") from None
    if not filenames.is_name(entry.file):
        raise SettingsError(f"{path}: {name}.file is {entry.file!r}: it must be a name, no path, and end with .gguf.")
    if len(entry.checksums) != len(entry.files):
        raise SettingsError(f"{path}: {name}.sha256 has {len(entry.checksums)}, of {len(entry.files)} files.")
    try:
        return msgspec.structs.replace(entry, source=_resolved(entry.source, path.parent))
    except SettingsError as error:
        raise SettingsError(f"{path}: {name}.source: {error.message}") from None


def _resolved(source: str, folder: Path) -> str:
    """A path counts from the catalogue's folder, wherever segue runs."""
    return source if ":" in source else str(folder / path_of(source))
