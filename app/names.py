"""Which file a model is, and what it is called: its id, and the other names under which it is served."""

import re
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from app.errors import SettingsError

_QUANTISATION = re.compile(r"[-._](?:I?Q\d\w*|BF16|F16|F32|FP16|TQ\d\w*|MXFP4\w*)$", re.IGNORECASE)
_PART = re.compile(r"-\d{5}-of-\d{5}$")
_LATER_PART = re.compile(r"-(?!00001-)\d{5}-of-\d{5}\.gguf$")


def file_of(model: str | None) -> Path:
    """The file that the setting names: itself, or the only model in a folder. Raises SettingsError.

    Where segue is one executable and nothing is named, the folder is the one that it lies in.
    """
    if model is None and getattr(sys, "frozen", False):
        model = str(Path(sys.executable).parent)
    if model is None:
        raise SettingsError("model is missing: name a GGUF file with --model PATH, or start by scripts/serve.")
    path = Path(model)
    return _only_model_in(path) if path.is_dir() else path


def _only_model_in(folder: Path) -> Path:
    found = sorted(path for path in folder.glob("*.gguf") if not _LATER_PART.search(path.name))
    if not found:
        raise SettingsError(f"model: there is no .gguf file in {folder}; put one there, or name it with --model PATH.")
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise SettingsError(f"model: {folder} holds more than one: {names}; name one of them with --model PATH.")
    return found[0]


def names_of(path: Path, aliases: Iterable[str] = ()) -> tuple[str, ...]:
    """The id first: the file's name without its quantisation; then the file's name, and the aliases."""
    stem = _PART.sub("", path.name.removesuffix(".gguf"))
    return tuple(dict.fromkeys((_QUANTISATION.sub("", stem), stem, *aliases)))


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
                    f"[[models]] number {number} is called {min(shared)!r}, as number {before} is: give each its own "
                    "alias, or its file another name."
                )
    return told
