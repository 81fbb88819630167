"""A file that cannot be a model is told from one that may be, with the remedy, before llama.cpp sees it."""

import errno
import os
import struct
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest
from gguf import GGUFWriter
from hypothesis import given
from hypothesis import strategies as st

from app.engine import header
from app.engine.header import metadata
from app.errors import ModelError
from tests.engine.fakes import PROPERTY

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


def test_what_a_file_says_of_its_model_is_read_up_to_its_tokens(toy_folder: Path) -> None:
    known = metadata(toy_folder / "toy-spm.gguf")
    assert known["general.architecture"] == "llama"
    assert (known["llama.block_count"], known["llama.context_length"], known["llama.embedding_length"]) == (
        1,
        8192,
        1024,
    )
    assert not any(key.startswith("tokenizer.") for key in known)


def test_every_kind_of_value_is_read_and_a_list_of_numbers_is_its_mean(tmp_path: Path) -> None:
    path = tmp_path / "kinds.gguf"
    writer = GGUFWriter(path, "llama")
    for name in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
        getattr(writer, f"add_{name}")(name, 7)
    writer.add_float32("float32", 0.5)
    writer.add_float64("float64", 0.25)
    writer.add_bool("bool", True)
    writer.add_string("string", "é")
    writer.add_array("numbers", [1, 2, 6])
    writer.add_array("words", ["a", "b"])
    writer.add_uint32("last", 9)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    known = metadata(path)
    assert [known[f"{sign}int{bits}"] for bits in (8, 16, 32, 64) for sign in ("u", "")] == [7] * 8
    assert (known["float32"], known["float64"], known["bool"], known["string"]) == (0.5, 0.25, True, "é")
    assert (known["numbers"], known["last"]) == (3, 9)
    assert "words" not in known


@pytest.mark.parametrize("end", [24, 30, 40, 60, 100])
def test_what_is_cut_off_tells_what_it_can(toy_folder: Path, tmp_path: Path, end: int) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes((toy_folder / "toy-spm.gguf").read_bytes()[:end])
    assert set(metadata(path)) <= set(metadata(toy_folder / "toy-spm.gguf"))


@PROPERTY
@given(st.binary(max_size=200))
def test_nonsense_tells_nothing_and_harms_nobody(data: bytes) -> None:
    with NamedTemporaryFile() as file:
        Path(file.name).write_bytes(b"GGUF\3\0\0\0" + bytes(8) + b"\xff" * 8 + data)
        metadata(Path(file.name))
