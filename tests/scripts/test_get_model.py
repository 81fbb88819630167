"""scripts/get_model: `segue models get` of the checkout."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose segue says what it is called with."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "get_model", tmp_path / "scripts")
    segue = tmp_path / ".venv/bin/segue"
    segue.parent.mkdir(parents=True)
    segue.write_text('#!/bin/sh\necho "$SEGUE_MODELS $*"\n')
    segue.chmod(0o755)
    return tmp_path


def run(checkout: Path, *arguments: str, **extra: str) -> "subprocess.CompletedProcess[str]":
    env = {key: value for key, value in os.environ.items() if key != "SEGUE_MODELS"} | extra
    return subprocess.run(
        [checkout / "scripts/get_model", *arguments], env=env, cwd="/", capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ([], "models get gemma-3-270m"),
        (["--verify"], "models get --verify gemma-3-270m"),
        (["qwen2.5-coder-1.5b"], "models get qwen2.5-coder-1.5b"),
        (["a b", "--verify"], "models get a b --verify"),
    ],
)
def test_it_gets_the_default_unless_another_is_named(checkout: Path, arguments: list[str], asked: str) -> None:
    assert run(checkout, *arguments).stdout == f"{checkout}/models {asked}\n"


def test_the_folder_may_be_another(checkout: Path) -> None:
    assert run(checkout, SEGUE_MODELS="/else where").stdout == "/else where models get gemma-3-270m\n"


def test_where_segue_is_not_installed_it_says_how(checkout: Path) -> None:
    (checkout / ".venv/bin/segue").unlink()
    done = run(checkout)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "run scripts/install first" in done.stderr
