"""The command line: `segue COMMAND`. Each command has a module of its name, which is imported when it is called."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import click

from app import __version__

COMMANDS = {
    "serve": "Serve a model.",
    "complete": "Continue a text.",
    "models": "Get, list, describe and remove models.",
    "bench": "Measure how fast a model is here, or a server.",
    "doctor": "Look for what keeps a model from running here.",
    "ray": "Serve a model by replicas on a Ray cluster.",
    "completion": "Print what makes a shell complete segue's words.",
    "probe": None,  # hidden
}
"""What there is, and what the help says of it without importing it: llama.cpp alone takes half a second."""


class Deferred(click.Command):
    """A command that stands for the one of its name in the module of its name."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        command: click.Command = getattr(import_module(f"{__name__}.{self.name}"), str(self.name))
        return command.make_context(info_name, args, parent, **extra)


class Words(click.Group):
    """All commands: what click says no with is one line too."""

    def main(self, *arguments: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        run: Callable[..., Any] = super().main
        if not standalone_mode:
            return run(*arguments, standalone_mode=False, **extra)
        from app.cli.ends import one_line_ends  # rich takes its time

        with one_line_ends():
            sys.exit(run(*arguments, standalone_mode=False, **extra))


@click.group("segue", cls=Words, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="segue")
def main() -> None:
    """segue continues text: any GGUF model behind OpenAI's POST /v1/completions."""


for name, told in COMMANDS.items():
    main.add_command(Deferred(name, short_help=told, hidden=told is None))
