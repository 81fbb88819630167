"""What commands print with: tables, what others wrote made safe, a bar while a model loads."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

console = Console(stderr=True, emoji=False)
"""Standard output is for what was asked for."""

_NOWHERE = logging.NullHandler()


def output() -> Console:
    """That, where it is more than text: colours if they can be seen and nobody said NO_COLOR, else 80 columns."""
    return Console(highlight=False, markup=False, emoji=False)


def tidy(screen: Console, thing: RenderableType) -> None:
    """Print a table, without the spaces that fill up its lines."""
    with screen.capture() as shown:
        screen.print(thing)
    click.echo("\n".join(line.rstrip() for line in shown.get().removesuffix("\n").split("\n")), color=True)


def quiet() -> None:
    """No log: what a command has to say, it says itself."""
    logging.getLogger("segue").addHandler(_NOWHERE)


def printable(text: str) -> str:
    """A text of others as it is safe on a terminal: one line, and nothing that moves the cursor."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


@contextmanager
def loading(name: str = "the model", *, shown: bool = True) -> Iterator[Callable[[float], None]]:
    """A bar while a model loads."""
    columns = (TextColumn(f"loading {name}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as progress:
        task = progress.add_task("", total=1.0)
        yield lambda done: progress.update(task, completed=done)
