"""What llama.cpp says: its log lines on their way to Python's logging, and what they tell of a failure.

Owns the lines; refuses to know what was tried.
"""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

logger = logging.getLogger("segue.llama")

_ERROR = 4
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, _ERROR: logging.WARNING}


class Hearing:
    """The lines that matter later: the errors, and all of them while somebody listens."""

    def __init__(self) -> None:
        self._complaints: list[str] = []
        self._listeners: list[list[str]] = []

    def hear(self, level: int, text: bytes) -> None:
        """Take a line of llama.cpp's log."""
        line = text.decode("utf-8", "replace").strip()
        if level == _ERROR and line:
            self._complaints.append(line)
        for lines in self._listeners:
            lines.append(line)
        if line.strip("."):
            logger.log(_LEVELS.get(level, logging.DEBUG), "%s", line)

    @contextmanager
    def lines(self) -> Iterator[list[str]]:
        """The lines, as they come."""
        self._listeners.append([])
        try:
            yield self._listeners[-1]
        finally:
            self._listeners.pop()

    def forget(self) -> None:
        """Forget earlier errors: what fails next has causes of its own."""
        self._complaints.clear()

    @property
    def cause(self) -> str:
        """Why something failed: of its errors the first, since those after it only say that it did."""
        return self._complaints[0].rstrip(".") if self._complaints else "it gave no reason"

    def remedy(self, remedies: Mapping[str, str], default: str) -> str:
        """What helps, by llama.cpp's words for what went wrong."""
        return next((told for words, told in remedies.items() if words in self.cause), default)
