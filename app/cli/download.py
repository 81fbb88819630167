"""What a download says on the terminal, and how a signal ends it."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from app.catalogue import fetch
from app.cli.console import console


@contextmanager
def shown(model: fetch.Wanted) -> Iterator[fetch.Progress]:
    """One line when the first byte comes; then a bar, where somebody looks."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(model.name, visible=False)
        is_announced = False

        def report(n_bytes: int, total: int | None) -> None:
            nonlocal is_announced
            if not is_announced:
                is_announced = True
                console.print(_announced(model, total), highlight=False, markup=False, soft_wrap=True)
            bar.update(task, completed=n_bytes, total=total, visible=True)

        yield report


def _announced(model: fetch.Wanted, total: int | None) -> str:
    entry = model.entry
    size = [decimal(total)] if total else []
    licence = [entry.licence + f" ({entry.terms})" * bool(entry.terms)] if entry and entry.licence else []
    return ", ".join([f"getting {model.name}", *size, *licence])


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM ends it as SIGINT does: in order, and what came so far is kept for the next time."""

    def end(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)
