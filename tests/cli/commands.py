"""The command line in this process: what it prints, and how it ends."""

from click.testing import CliRunner, Result

from app.cli import main
from tests.servers import one_line


def run(*arguments: str, text: str | bytes | None = None, env: dict[str, str] | None = None) -> Result:
    """Run a command that must end as commands do, without a traceback. Nobody's settings reach it."""
    alone = {"SEGUE_MODEL": None, "SEGUE_CONFIG": None, "COLUMNS": "80"}
    done = CliRunner().invoke(main, arguments, input=text, env=alone | (env or {}))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def printed(*arguments: str, text: str | bytes | None = None, env: dict[str, str] | None = None) -> str:
    """What a command prints that ends with success and has nothing else to say."""
    done = run(*arguments, text=text, env=env)
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def refused(code: int, *arguments: str, text: str | bytes | None = None) -> str:
    """The line in which a command says why it does not do it."""
    done = run(*arguments, text=text)
    assert (done.exit_code, done.stdout) == (code, ""), done.output
    line = one_line(done.stderr)
    assert line.startswith("segue: ")
    return line
