"""A file that can be had: what is known of it before, and its bytes.

Each source makes its own; the store knows no more of them than this.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Remote:
    """One file of a model.

    file: its name in the folder. size: in bytes, where it is known. sha256: in hexadecimal, where it is known.
    version: what tells this file from an older or another one of its name; what was read of one can be gone on with,
    if the source `resumes`.
    read: the bytes from an offset on; may use a scratch folder that is removed after. Raises SourceError.
    """

    file: str
    size: int | None
    sha256: str | None
    version: str
    resumes: bool
    read: Callable[[int, Path], Iterator[bytes]]
