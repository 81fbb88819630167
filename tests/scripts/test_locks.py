"""The locks: pinned, hashed, free of addresses, and in step with pyproject.toml."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
NAMES = ["build", "dev", "llama", "ray", "run", "ship"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def text(name: str) -> str:
    return (ROOT / "requirements" / f"{name}.lock").read_text()


def pins(name: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text(name), re.MULTILINE))


@pytest.mark.parametrize("name", NAMES)
def test_every_requirement_is_pinned_and_hashed(name: str) -> None:
    for requirement in text(name).replace("\\\n", " ").splitlines():
        assert re.fullmatch(r"[\w.-]+==\S+( ; [^\\#]+?)?(\s+--hash=sha256:[0-9a-f]{64})+", requirement), requirement


@pytest.mark.parametrize("name", NAMES)
def test_no_address(name: str) -> None:
    assert not re.search(r"://|index-url|find-links|@", text(name))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("run", [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["self"]]),
        ("dev", [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["test"]]),
        ("ray", PROJECT["project"]["optional-dependencies"]["ray"]),
        ("build", PROJECT["dependency-groups"]["build"]),
        ("ship", PROJECT["dependency-groups"]["ship"]),
    ],
)
def test_pins_agree_with_the_project(name: str, wanted: list[str]) -> None:
    pinned = {**pins(name), **pins("llama")}
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(pinned[requirement.name]), requirement


def test_dev_is_all_of_run() -> None:
    assert pins("run").items() <= pins("dev").items()


def test_ray_is_tried_with_the_versions_that_everything_else_is_tried_with() -> None:
    dev, ray = pins("dev"), pins("ray")
    both = dev.keys() & ray.keys()
    assert {name: ray[name] for name in both} == {name: dev[name] for name in both}


def test_llama_is_compiled_apart() -> None:
    assert list(pins("llama")) == ["llama-cpp-python"]
    assert "llama-cpp-python" not in {**pins("run"), **pins("dev"), **pins("ray")}
