"""What the name of a GGUF file tells: its quantisation, and which part of a split model it is."""

import re

from app.engine.split import PART

_QUANTISATION = re.compile(r"[-._](I?Q\d\w*|BF16|F16|F32|FP16|TQ\d\w*|MXFP4\w*)$", re.IGNORECASE)
_NAME = re.compile(r"[^./\\][^/\\]*\.gguf")
_MOST_BYTES = 220
"""Of a name: systems allow 255, and what a download is called while it lasts is longer."""


def is_name(file: str) -> bool:
    """Whether a model's file may be called so: a name and no path, which is seen, and can be printed.

    Nothing is written outside the models' folder then, or hidden in it.
    """
    return bool(_NAME.fullmatch(file)) and file.isprintable() and len(file.encode()) <= _MOST_BYTES


def stem_of(file: str) -> str:
    """The name without its ending, and without the number of a part."""
    return PART.sub("", file.removesuffix(".gguf"))


def quantisation_of(file: str) -> str | None:
    """Q4_K_M, say; None where the name has none."""
    found = _QUANTISATION.search(stem_of(file))
    return found[1] if found else None


def model_of(file: str) -> str:
    """The stem without the quantisation: what the model is called."""
    return _QUANTISATION.sub("", stem_of(file))


def is_later_part(file: str) -> bool:
    """Whether it is a part of a split model, and not the first."""
    found = PART.search(file)
    return bool(found and int(found[1]) > 1)
