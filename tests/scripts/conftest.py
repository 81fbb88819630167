"""The scripts, imported as modules: they have no .py in their names."""

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def script(name: str) -> Any:
    loader = SourceFileLoader(f"scripts_{name}", str(ROOT / "scripts" / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec
    module = module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses look their module up
    loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def install() -> Any:
    return script("install")


@pytest.fixture(scope="session")
def audit() -> Any:
    return script("audit")
