"""What every command says on the terminal: errors in one line, a bar while a model loads."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from app.errors import SettingsError, StartError

console = Console(stderr=True)
"""Standard output is for what was asked for."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the program with one line where it cannot start: status 2 for a wrong setting, else 1."""
    try:
        yield
    except StartError as error:
        console.print(f"segue: {error.message}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, SettingsError) else 1)


@contextmanager
def loading(name: str = "the model", *, shown: bool = True) -> Iterator[Callable[[float], None]]:
    """A bar while a model loads."""
    columns = (TextColumn(f"loading {name}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda done: progress.update(task, completed=done)
