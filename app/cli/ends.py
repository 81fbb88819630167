"""How a command ends that cannot go on: one line, and a status that scripts can tell apart. Never a traceback."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import click
from click.exceptions import NoArgsIsHelpError

from app.cli.console import console, printable
from app.errors import RequestError, SegueError, SettingsError, Unauthorized

INTERRUPTED = 130
_WRONG = (SettingsError, RequestError, Unauthorized)
"""Errors of whoever asked."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""What a file says that cannot be written to the end."""


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the program with one line where it cannot go on: status 2 for what was asked wrongly, else 1."""
    try:
        yield
    except SegueError as error:
        _refuse(error.message, 2 if isinstance(error, _WRONG) else 1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


@contextmanager
def one_line_ends() -> Iterator[None]:
    """The same for what no command foresees: words that click does not know, and what cannot be written."""
    try:
        yield
    except NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _refuse(_told(error), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)
    except UnicodeEncodeError as error:
        _refuse(f"{error.object[error.start : error.end]} cannot be written as {error.encoding}.", 1)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        _forget_output()
        _refuse(f"standard output cannot be written: {error.strerror}.", 1)


def _told(error: click.ClickException) -> str:
    """What click has to say, and where more is said."""
    message, context = error.format_message().rstrip("."), getattr(error, "ctx", None)
    return f"{message}; see {context.command_path} --help." if context else f"{message}."


def _refuse(message: str, code: int) -> NoReturn:
    line = printable(message)
    console.print(f"segue: {line}", style="bold red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)


def _forget_output() -> None:
    """What is kept of standard output is not tried again at the end, which would say so once more."""
    with suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
