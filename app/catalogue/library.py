"""The models of one folder by name: those that the catalogue knows, and those that lie there."""

from pathlib import Path

from msgspec import Struct

from app.catalogue import entries, filenames
from app.catalogue.entries import Entry
from app.catalogue.store import Store


class Listed(Struct, frozen=True, kw_only=True):
    """A model, as a list shows it. size: bytes, of what is there, or is to come; None where that is not known."""

    name: str
    file: str
    here: bool
    size: int | None
    entry: Entry | None


class Library:
    """A folder and its catalogue. Raises SettingsError where that cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder)
        self.entries = entries.load(folder)

    def file(self, name: str) -> str | None:
        """The file of the model that is called so, there or not: by the catalogue, or by the file's own name."""
        if entry := self.entries.get(name):
            return entry.file
        stem = name.removesuffix(".gguf")
        named = (file for file in self.store.models() if stem in (file.removesuffix(".gguf"), filenames.stem_of(file)))
        return next(named, None)

    def entry(self, file: str) -> Entry | None:
        """What the catalogue knows of a file, wherever it lies."""
        return next((entry for entry in self.entries.values() if entry.file == file), None)

    def models(self) -> list[Listed]:
        """The catalogue's first, in its order, then the other files."""
        known = [self._listed(name, entry.file, entry) for name, entry in self.entries.items()]
        files = [file for file in self.store.models() if self.entry(file) is None]
        return known + [self._listed(filenames.stem_of(file), file, None) for file in files]

    def _listed(self, name: str, file: str, entry: Entry | None) -> Listed:
        is_here = self.store.holds(file)
        size = self.store.size(file) if is_here or entry is None else entry.size
        return Listed(name=name, file=file, here=is_here, size=size, entry=entry)
