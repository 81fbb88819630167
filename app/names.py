"""Which file a model is, and what it is called: its id, and the other names under which it is served."""

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from app.catalogue import filenames, sources, store
from app.catalogue.entries import Entry
from app.catalogue.library import Library
from app.errors import SettingsError


def file_of(model: str | None) -> Path:
    """The file that the setting names: a path's, the only model in a folder, or that of a model by its name.

    Where segue is one executable and nothing is named, the folder is the one that it lies in. Raises SettingsError.
    """
    if model is None and getattr(sys, "frozen", False):
        model = str(Path(sys.executable).parent)
    if model is None:
        raise SettingsError("model is missing: name a GGUF file with --model PATH, or start by scripts/serve.")
    path = Path(model)
    try:
        if path.is_dir():
            return _only_model_in(path)
        return path if path.is_file() or sources.is_path(model) else _named(model)
    except OSError as error:
        raise SettingsError(f"model: {path} cannot be looked at: {error.strerror}.") from None


def _named(model: str) -> Path:
    """The file of a model of the catalogue, or of the models' folder. Raises SettingsError."""
    if sources.is_source(model):
        raise SettingsError(f"model: {model} says where a model is; get it first: segue models get {model}")
    library = Library(store.folder())
    file = library.file(model)
    if file is None:
        raise SettingsError(
            f"model: there is no file {model}, and no model of that name in {library.store.root} or the catalogue; "
            "`segue models list` shows those."
        )
    if not library.store.holds(file):
        raise SettingsError(f"model: {model} is not downloaded; get it first: segue models get {model}")
    return library.store.root / file


def catalogue_entry(path: Path) -> Entry | None:
    """What the catalogue knows of a file, by its name. Raises SettingsError where the catalogue cannot be read."""
    return Library(store.folder()).entry(path.name)


def _only_model_in(folder: Path) -> Path:
    found = sorted(path for path in folder.glob("*.gguf") if not filenames.is_later_part(path.name))
    if not found:
        raise SettingsError(f"model: there is no .gguf file in {folder}; put one there, or name it with --model PATH.")
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise SettingsError(f"model: {folder} holds more than one: {names}; name one of them with --model PATH.")
    return found[0]


def names_of(path: Path, aliases: Iterable[str] = ()) -> tuple[str, ...]:
    """The id first: the file's name without its quantisation; then the file's name, and the aliases."""
    return tuple(dict.fromkeys((filenames.model_of(path.name), filenames.stem_of(path.name), *aliases)))


def told_apart(models: Iterable[tuple[Path, Iterable[str]]]) -> list[tuple[str, ...]]:
    """The names of several models, from the file and the aliases of each. Raises SettingsError where two share one.

    A short name that several would have, as two quantisations of one model do, is only whose alias it is.
    """
    named = [(names_of(path, own := tuple(aliases)), {names_of(path)[-1], *own}) for path, aliases in models]
    n_of = Counter(short for (short, *_), _ in named)
    told = [tuple(name for name in names if n_of[name] < 2 or name in sure) for names, sure in named]
    for number, names in enumerate(told, 1):
        for before, others in enumerate(told[: number - 1], 1):
            if shared := set(names) & set(others):
                raise SettingsError(
                    f"[[models]] number {number} is called {min(shared)!r}, as number {before} is; give each its own "
                    "alias, or its file another name."
                )
    return told
