"""How a command ends where nothing goes as it should: one line, a status, and nothing on standard output."""

import os
import signal
import subprocess
from pathlib import Path

import click
import pytest

from app.cli import console, ends, main
from tests.cli.commands import printed, refused, run
from tests.servers import COMMAND, ROOT, environment, one_line

SPOKEN = [("--help",), ("models", "list"), ("models", "list", "--json"), ("completion", "bash")]
FULL = Path("/dev/full")


def called(*arguments: str, files: str = "", extra: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A process of its own. files: what its standard ones are, as a shell has it."""
    command = ["sh", "-c", f'exec "$0" "$@" {files}', *COMMAND, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment(extra), capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nonsense",), "No such command 'nonsense'; see segue --help."),
        (("models", "nonsense"), "No such command 'nonsense'; see segue models --help."),
        (("models", "get"), "Missing argument 'NAME'; see segue models get --help."),
        (("complete", "a", "--best-of", "x"), "'x' is not a valid integer; see segue complete --help."),
        (("complete", "a", "--stream", "--logprobs", "1"), "choose --json; see segue complete --help."),
    ],
)
def test_what_click_says_no_with_is_one_line(words: tuple[str, ...], said: str) -> None:
    assert refused(2, *words).endswith(said)


def test_a_group_alone_tells_what_there_is() -> None:
    done = run("models")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "list" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
@pytest.mark.parametrize("words", SPOKEN, ids=" ".join)
def test_a_full_disk_is_told_once(words: tuple[str, ...]) -> None:
    done = called(*words, files=f">{FULL}")
    assert done.returncode == 1
    assert one_line(done.stderr) == "segue: standard output cannot be written: No space left on device."


@pytest.mark.parametrize("words", SPOKEN, ids=" ".join)
def test_who_closes_standard_output_wants_nothing(words: tuple[str, ...]) -> None:
    done = called(*words, files=">&-")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_standard_input_is_told() -> None:
    done = called("complete", "--url", "http://127.0.0.1:9", files="<&-")
    assert done.returncode == 2
    assert "standard input is closed" in one_line(done.stderr)


def test_what_an_encoding_cannot_say_is_told(tmp_path: Path) -> None:
    (tmp_path / "猫.gguf").touch()
    done = called("models", "list", extra={"SEGUE_MODELS": str(tmp_path), "PYTHONIOENCODING": "latin-1"})
    assert done.returncode == 1
    assert "cannot be written as latin-1." in one_line(done.stderr)


def test_a_question_that_is_broken_off_ends_as_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def asks() -> None:
        raise click.Abort

    monkeypatch.setitem(main.commands, "asks", asks)
    assert run("asks").exit_code == ends.INTERRUPTED == 128 + signal.SIGINT


def test_a_message_is_one_line_that_a_terminal_can_be_trusted_with() -> None:
    assert console.printable("a\nb\x1b[31m \udcff é") == r"a\nb\x1b[31m \udcff é"
    line = refused(2, "models", "show", "nothing\x1b[31m:x:\nhere")
    assert r"nothing\x1b[31m:x:\nhere" in line


def test_bytes_that_are_no_text_in_a_path_are_shown(tmp_path: Path) -> None:
    line = refused(1, "models", "show", os.fsdecode(bytes(tmp_path / "no") + b"\xff.gguf"))
    assert r"no\udcff.gguf: there is no such model file" in line


def test_a_command_that_is_asked_well_has_nothing_to_say_on_standard_error() -> None:
    assert printed("--version").startswith("segue")
