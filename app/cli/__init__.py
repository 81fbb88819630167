"""The command line: `segue COMMAND`. Each command has a module; this one gathers them."""

import click

from app import __version__
from app.cli.probe import probe
from app.cli.ray import ray
from app.cli.serve import serve


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="segue")
def main() -> None:
    """segue continues text: any GGUF model behind OpenAI's POST /v1/completions."""


for command in (serve, ray, probe):
    main.add_command(command)
