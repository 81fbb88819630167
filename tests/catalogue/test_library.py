"""Models of a folder by name."""

from pathlib import Path

import pytest

from app.catalogue.library import Library


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "catalogue.toml").write_text('[small]\nsource = "hf:a/b"\nfile = "s-q8_0.gguf"\nsize = 7\n')
    for name in ("big-Q4_K_M-00001-of-00002.gguf", "big-Q4_K_M-00002-of-00002.gguf", "other.gguf", "notes.txt"):
        (tmp_path / name).write_bytes(b"12345")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("small", "s-q8_0.gguf"),
        ("other", "other.gguf"),
        ("other.gguf", "other.gguf"),
        ("big-Q4_K_M", "big-Q4_K_M-00001-of-00002.gguf"),
        ("big-Q4_K_M-00001-of-00002", "big-Q4_K_M-00001-of-00002.gguf"),
        ("big", None),
        ("notes.txt", None),
        ("s-q8_0", None),
    ],
)
def test_a_name_is_the_catalogues_or_a_files(folder: Path, name: str, file: str | None) -> None:
    assert Library(folder).file(name) == file


def test_a_list_has_the_catalogue_and_then_the_files(folder: Path) -> None:
    listed = {model.name: (model.here, model.size) for model in Library(folder).models()}
    assert list(listed)[-3:] == ["small", "big-Q4_K_M", "other"]
    assert listed["small"] == (False, 7)
    assert listed["big-Q4_K_M"] == (True, 10)
    (folder / "s-q8_0.gguf").write_bytes(b"123")
    assert {model.name: (model.here, model.size) for model in Library(folder).models()}["small"] == (True, 3)


def test_what_is_known_of_a_file_is_the_entrys(folder: Path) -> None:
    library = Library(folder)
    assert library.entry("s-q8_0.gguf") is library.entries["small"]
    assert library.entry("other.gguf") is None


def test_a_name_that_counts_to_no_parts_is_a_name(tmp_path: Path) -> None:
    (tmp_path / "m-00001-of-00000.gguf").touch()
    (model,) = [model for model in Library(tmp_path).models() if model.here]
    assert (model.name, Library(tmp_path).store.size(model.file)) == ("m-00001-of-00000", 0)
