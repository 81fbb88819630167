"""What a check found: a line of `segue doctor`."""

from typing import Literal

from msgspec import Struct

from app.errors import StartError

Verdict = Literal["ok", "warn", "fail"]


class Finding(Struct, frozen=True):
    """name: of what was looked at. remedy: where there is something to do; a warning keeps nothing from working."""

    name: str
    verdict: Verdict
    found: str
    remedy: str | None = None


def well(name: str, found: str) -> Finding:
    return Finding(name, "ok", found)


def refusal(name: str, error: StartError, remedy: str = "segue serve --help tells what each setting takes") -> Finding:
    """What keeps a server from starting. Such errors end with their remedy, behind a semicolon; else it is this."""
    found, semicolon, own = error.message.rstrip(".").rpartition("; ")
    return Finding(name, "fail", found if semicolon else own, own if semicolon else remedy)
