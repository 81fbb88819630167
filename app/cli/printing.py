"""An answer on standard output: its text, or the API's own object."""

import click
import msgspec

from app.schemas import Choice, Completion


class Texts:
    """The texts of an answer, one choice after another: the first as it comes, each other when it is its turn."""

    def __init__(self, n_choices: int) -> None:
        self._n_choices = n_choices
        self._turn = 0
        self._kept: dict[int, list[Choice]] = {}
        self._head()

    def take(self, answer: Completion) -> None:
        """Write what has its turn of an answer, or of a chunk of one; keep the rest."""
        for choice in answer.choices:
            self._kept.setdefault(choice.index, []).append(choice)
        while pieces := self._kept.pop(self._turn, None):
            click.echo("".join(piece.text for piece in pieces), nl=False)
            if not pieces[-1].finish_reason:
                return
            self._turn += 1
            click.echo()
            self._head()

    def _head(self) -> None:
        """What tells several choices apart."""
        if 1 < self._n_choices > self._turn:
            click.echo(heading(self._turn, self._n_choices))


def heading(index: int, n_choices: int) -> str:
    """The line above one of several choices."""
    return f"--- {index + 1} of {n_choices} ---"


def as_json(answer: Completion) -> None:
    """An answer, or a chunk of one, as a line of JSON."""
    click.echo(msgspec.json.encode(answer))
