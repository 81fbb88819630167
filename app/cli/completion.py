"""`segue completion`."""

import click
from click.shell_completion import get_completion_class

_HOW = {
    "bash": 'eval "$(segue completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(segue completion zsh)"   in ~/.zshrc',
    "fish": "segue completion fish > ~/.config/fish/completions/segue.fish",
}


@click.command(epilog="\b\n" + "\n".join(_HOW.values()))
@click.argument("shell", type=click.Choice(list(_HOW)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script by which a shell completes segue's commands and options."""
    kind = get_completion_class(shell)
    assert kind, "click knows these shells"
    script = kind(context.find_root().command, {}, "segue", "_SEGUE_COMPLETE")
    click.echo(script.source_template % script.source_vars())
