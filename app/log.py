"""How log lines are written: for a terminal, or as JSON objects.

Owns their form, and that nothing in a line can look like another line or move the cursor: what does not print is
escaped. Refuses to know what is logged.
"""

import json
import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_BARE = re.compile(r"""[^\s"'=\\]+""")
"""Values that need no quotes."""

_quoted = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode
_object = json.JSONEncoder(default=str).encode


def set_up(*, as_json: bool) -> None:
    """Log from INFO on to stderr, other packages' lines and Python's warnings included."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.captureWarnings(True)


def fields(**values: Any) -> dict[str, Any]:
    """The `extra` of a logging call whose line has these values beside its message; None is left out of a text."""
    return {"fields": values}


class TextFormatter(logging.Formatter):
    """`time level message key=value ...`; a traceback follows on lines that are set in."""

    def format(self, record: logging.LogRecord) -> str:
        told = [self.formatTime(record), record.levelname, visible(record.getMessage()), *_pairs(_fields(record))]
        told[-1] += "".join(f"\n    {visible(line)}" for line in (_traceback(self, record) or "").splitlines())
        return " ".join(told)


class JsonFormatter(logging.Formatter):
    """One object a line, ASCII alone."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **{key: round(value, 6) if isinstance(value, float) else value for key, value in _fields(record).items()},
        }
        if traceback := _traceback(self, record):
            line["traceback"] = traceback
        return _object(line)


def visible(text: str) -> str:
    """`text`, with escapes for what does not print: line ends, control characters, marks that turn the direction."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(record, "fields", {})
    return found


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str | None:
    return formatter.formatException(record.exc_info) if record.exc_info else None


def _pairs(values: Mapping[str, Any]) -> list[str]:
    return [f"{key}={_written(value)}" for key, value in values.items() if value is not None]


def _written(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str) and _BARE.fullmatch(value):
        return visible(value)
    return visible(_quoted(value))
