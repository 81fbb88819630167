"""A file that cannot be a model is told from one that may be, with the remedy, before llama.cpp sees it."""

import errno
import os
import struct
from pathlib import Path

import pytest

from app.engine import header
from app.errors import ModelError

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 253113024\n"


def gguf(version: int = 3, n_tensors: int = 0, n_pairs: int = 0, order: str = "<") -> bytes:
    return struct.pack(f"{order}4sIQQ", b"GGUF", version, n_tensors, n_pairs)


WRONG: list[tuple[str, bytes, str, str]] = [
    ("empty", b"", "empty", "download"),
    ("a pointer", POINTER, "Git-LFS", "git lfs pull"),
    ("a page", b"<!DOCTYPE html><html>", "web page", "download"),
    ("text", b"not a model at all" * 100, "not GGUF", "convert"),
    ("PyTorch's", b"PK\x03\x04" + bytes(100), "PyTorch", "convert"),
    ("safetensors", struct.pack("<Q", 90) + b'{"weight": ' + bytes(80), "safetensors", "convert"),
    ("GGML's", b"tjgg" + bytes(100), "older than GGUF", "GGUF"),
    ("four bytes", b"GGUF", "cut off", "download"),
    ("half a header", gguf()[:-1], "cut off", "download"),
    ("a header alone", gguf(n_tensors=10, n_pairs=3), "10 tensors", "download"),
    ("absurd", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, "damaged", "download"),
    ("big-endian", gguf(order=">") + bytes(1000), "big-endian", "little-endian"),
]


@pytest.mark.parametrize(("content", "reason", "remedy"), [p[1:] for p in WRONG], ids=[p[0] for p in WRONG])
def test_what_is_no_model_is_told_by_its_path_the_reason_and_the_remedy(
    tmp_path: Path, content: bytes, reason: str, remedy: str
) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    message = refused(path)
    assert reason in message
    assert remedy in message


def refused(path: Path) -> str:
    with pytest.raises(ModelError) as raised:
        header.check(path)
    assert "\n" not in raised.value.message
    assert str(path) in raised.value.message
    return raised.value.message


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    assert "no such" in refused(tmp_path / "nowhere.gguf")
    assert "no file" in refused(tmp_path)


def test_a_file_that_may_not_be_read_is_told_from_one_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    path = tmp_path / "closed.gguf"
    path.write_bytes(gguf())
    monkeypatch.setattr(Path, "open", denied)  # whoever runs the tests may be allowed everything
    message = refused(path)
    assert os.strerror(errno.EACCES) in message
    assert "owner and mode" in message


def test_a_model_passes(toy_folder: Path) -> None:
    for name in ("toy-spm", "toy-bpe"):
        header.check(toy_folder / f"{name}.gguf")


def test_what_no_system_lets_a_file_be_called_is_refused() -> None:
    assert "File name too long" in refused(Path("x" * 300))
