"""`segue ray`, as far as it comes without Ray; with it: tests/ray."""

import importlib.util
from pathlib import Path

import pytest

from tests.cli.commands import refused
from tests.servers import one_line, segue


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_where_ray_is_not_installed_one_line_says_how(toy_folder: Path) -> None:
    done = segue("ray", "--port", "0", "--model", str(toy_folder / "toy-spm.gguf"))
    assert done.returncode == 1
    assert "pip install 'segue[ray]'" in one_line(done.stderr)


@pytest.mark.parametrize(
    "given", [("--replicas", "2", "--max-replicas", "3"), ("--min-replicas", "3", "--max-replicas", "2")]
)
def test_numbers_of_replicas_that_contradict_one_another_are_refused(given: tuple[str, ...]) -> None:
    done = segue("ray", *given)
    assert done.returncode == 2
    assert all(flag in one_line(done.stderr) for flag in given[::2])


def test_what_is_wrong_with_several_models_is_told_before_any_cluster_starts(toy_folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "segue.toml"
    config.write_text(f"[[models]]\nmodel = '{toy_folder / 'toy-spm.gguf'}'\n" * 2)
    assert "number 2 is called 'toy-spm'" in refused(2, "ray", "--config", str(config))
