"""The walls between the parts: who imports whom, read from the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted((ROOT / "app").rglob("*.py"))
}
LAYERS = (
    {"app"},
    {"app.errors", "app.log"},
    {"app.engine"},
    {"app.catalogue"},
    {"app.member"},
    {"app.schemas", "app.settings", "app.names", "app.roster"},
    {"app.completion"},
    {"app.api"},
    {"app.asgi"},
    {"app.muster"},
    {"app.ray"},
    {"app.cli"},
    {"app.__main__"},
)
"""From the ground up: each may import what stands below it, and its own kind."""


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in it; of `from a import b`, a.b where that is a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            assert node.module
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES or f"{whole}.__init__" in MODULES else node.module


def part(module: str) -> str:
    """The part of the house that a module belongs to."""
    names = module.removesuffix(".__init__").split(".")
    return ".".join(names[:2])


def layer(module: str) -> int:
    return next(i for i, parts in enumerate(LAYERS) if part(module) in parts)


def users(package: str) -> set[str]:
    """The modules of app that import a package."""
    return {name for name, path in MODULES.items() if any(i.split(".")[0] == package for i in imports(path))}


def test_the_walls_are_read_from_something() -> None:
    assert len(MODULES) > 20
    assert "app.errors" in set(imports(MODULES["app.engine.engine"]))


def test_only_the_backend_imports_llama_cpp() -> None:
    found = users("llama_cpp")
    assert found
    assert all(name.startswith("app.engine.llama.") for name in found)


def test_only_the_api_and_the_root_know_litestar() -> None:
    found = users("litestar")
    assert "app.asgi" in found
    assert all(name == "app.asgi" or name.startswith("app.api.") for name in found)


def test_only_the_api_knows_uvicorn() -> None:
    assert all(name.startswith("app.api.") for name in users("uvicorn"))


def test_only_one_module_knows_prometheus() -> None:
    assert users("prometheus_client") == {"app.api.metrics"}


def test_only_the_command_line_knows_click_and_rich() -> None:
    assert all(name.startswith("app.cli.") for name in users("click") | users("rich"))


FILES = {"glob", "io", "mmap", "os", "pathlib", "shutil", "tempfile"}
"""What leads to the file system."""


@pytest.mark.parametrize("name", [name for name in MODULES if part(name) in {"app.api", "app.completion"}])
def test_no_request_reaches_the_file_system(name: str) -> None:
    """`app.api.server` binds and ends the process; requests do not get there."""
    used = {imported.split(".")[0] for imported in imports(MODULES[name])} & FILES
    assert used <= ({"os"} if name in {"app.api.server", "app.api.signed"} else set())
    named = {node.id for node in ast.walk(ast.parse(MODULES[name].read_text())) if isinstance(node, ast.Name)}
    assert "open" not in named


@pytest.mark.parametrize("name", MODULES)
def test_no_import_points_up(name: str) -> None:
    for imported in imports(MODULES[name]):
        if imported.split(".")[0] == "app":
            assert layer(imported) <= layer(name), f"{name} imports {imported}"
            same = layer(imported) == layer(name) and part(imported) != part(name)
            assert not same, f"{name} imports {imported}, which stands beside it"


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("app.engine")])
def test_the_engine_knows_nothing_of_openai_or_http(name: str) -> None:
    used = {part(imported) for imported in imports(MODULES[name]) if imported.startswith("app.")}
    assert used <= {"app.engine", "app.errors"}


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("app.completion")])
def test_completion_knows_no_http(name: str) -> None:
    used = {part(imported) for imported in imports(MODULES[name]) if imported.startswith("app.")}
    assert "app.api" not in used
    assert "app.settings" not in used
