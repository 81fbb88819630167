"""`segue completion`: scripts that a shell takes, and what they complete."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import printed, run
from tests.servers import ROOT, environment

SHELLS = ("bash", "zsh", "fish")


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_one_of_that_shell(shell: str) -> None:
    script = printed("completion", shell)
    assert "_SEGUE_COMPLETE" in script
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script, text=True, check=True)
    else:
        assert shell != "bash", "scripts run in bash here"


def test_bash_completes_commands_options_and_shells(tmp_path: Path) -> None:
    """As bash does: the function of the script is called with the words so far, and leaves what may follow."""
    bash = shutil.which("bash")
    assert bash
    program = tmp_path / "segue"
    program.write_text(f"#!{sys.executable}\nfrom app.cli import main\nmain(prog_name='segue')\n")
    program.chmod(0o755)

    def completed(*words: str) -> set[str]:
        quoted = " ".join(f"'{word}'" for word in words)
        lines = [
            printed("completion", "bash"),
            f"COMP_WORDS=({quoted}) COMP_CWORD={len(words) - 1}",
            "_segue_completion segue",
            'printf "%s\\n" "${COMPREPLY[@]}"',
        ]
        path = f"{tmp_path}:/usr/bin:/bin"
        done = subprocess.run(
            [bash, "-c", "\n".join(lines)],
            env=environment({"PATH": path}), cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stderr == ""
        return set(done.stdout.split())

    assert completed("segue", "do") == {"doctor"}
    assert {"complete", "completion"} == completed("segue", "comp")
    assert completed("segue", "complete", "--prob") == {"--probabilities"}
    assert completed("segue", "completion", "") == set(SHELLS)


def test_another_shell_is_refused() -> None:
    done = run("completion", "csh")
    assert done.exit_code == 2
    assert all(shell in done.stderr for shell in SHELLS)
