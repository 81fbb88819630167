"""What every command says on the terminal: errors in one line, a bar while a model loads."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from app.errors import RequestError, SegueError, SettingsError, Unauthorized

console = Console(stderr=True)
"""Standard output is for what was asked for."""

INTERRUPTED = 130
_WRONG = (SettingsError, RequestError, Unauthorized)
"""Errors of whoever asked."""
_NOWHERE = logging.NullHandler()


def output() -> Console:
    """That, where it is more than text: colours if they can be seen and nobody said NO_COLOR, else 80 columns."""
    return Console(highlight=False, markup=False, emoji=False)


def quiet() -> None:
    """No log: what a command has to say, it says itself."""
    logging.getLogger("segue").addHandler(_NOWHERE)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the program with one line where it cannot go on: status 2 for what was asked wrongly, else 1."""
    try:
        yield
    except SegueError as error:
        console.print(f"segue: {error.message}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, _WRONG) else 1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


@contextmanager
def loading(name: str = "the model", *, shown: bool = True) -> Iterator[Callable[[float], None]]:
    """A bar while a model loads."""
    columns = (TextColumn(f"loading {name}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda done: progress.update(task, completed=done)
