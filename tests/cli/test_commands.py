"""What the command line imports, and when."""

import subprocess
import sys

import pytest

from app.cli import COMMANDS, main
from tests.servers import ROOT, environment

ASKED = """
import sys
from app.cli import main
main(["--help"], standalone_mode=False)
print("llama_cpp" in sys.modules)
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_what_its_module_defines(name: str) -> None:
    found = main.commands[name].make_context(name, ["--help"], resilient_parsing=True).command
    assert found.name == name
    assert found.hidden == main.commands[name].hidden
    assert found.callback


def test_the_help_waits_for_no_command() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASKED], cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
    )
    assert all(name in done.stdout for name, told in COMMANDS.items() if told)
    assert done.stdout.splitlines()[-1] == "False"
