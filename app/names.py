"""What a model file is called: its id, and the other names under which it is served."""

import re
from collections.abc import Iterable
from pathlib import Path

_QUANTISATION = re.compile(r"[-._](?:I?Q\d\w*|BF16|F16|F32|FP16|TQ\d\w*|MXFP4\w*)$", re.IGNORECASE)
_PART = re.compile(r"-\d{5}-of-\d{5}$")


def names_of(path: Path, aliases: Iterable[str] = ()) -> tuple[str, ...]:
    """The id first: the file's name without its quantisation; then the file's name, and the aliases."""
    stem = _PART.sub("", path.name.removesuffix(".gguf"))
    return tuple(dict.fromkeys((_QUANTISATION.sub("", stem), stem, *aliases)))
