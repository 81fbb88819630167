"""The parts of a model that was split into several files, as their names count them."""

import re

PART = re.compile(r"-(\d{5})-of-(?!00000)(\d{5})(?=\.gguf$|$)")


def parts_of(file: str) -> list[str]:
    """The names of all files of the model that this one belongs to: itself alone, unless it counts parts."""
    found = PART.search(file)
    if not found:
        return [file]
    stem = file[: found.start()]
    return [f"{stem}-{n:05}-of-{found[2]}.gguf" for n in range(1, int(found[2]) + 1)]
