"""`segue probe`, for segue itself."""

import sys

import click

from app.engine import probe as trials


@click.command(hidden=True)
@click.argument("trial")
def probe(trial: str) -> None:
    """Decode a few tokens, and die of it if need be: a server's own child, where it is frozen into one file."""
    sys.exit(trials.main(trial))
