"""The catalogue: its form, and whose entries count."""

import errno
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from app.catalogue import entries, package
from app.errors import SettingsError
from tests.servers import ROOT

GOOD = 'source = "hf:a/b:Q8_0"\nfile = "m.gguf"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "catalogue.toml"
    path.write_text(text)
    return path


def test_the_built_in_catalogue_is_whole() -> None:
    known = entries.read(entries.BUILT_IN)
    assert next(iter(known)) == "gemma-3-270m", "scripts/get_model takes it where none is named"
    for entry in known.values():
        assert all(sha256 and len(bytes.fromhex(sha256)) == 32 for sha256 in entry.checksums)
        assert entry.size
        assert entry.licence
        assert entry.terms.startswith("https://")
        kind, _, rest = entry.source.partition(":")
        assert kind == "pypi"
        assert len(set(package.requirements_of(rest))) > 1


def test_the_checkout_shows_the_catalogue_that_is_installed() -> None:
    assert (ROOT / "models" / "catalogue.toml").resolve() == entries.BUILT_IN


def test_the_wheel_carries_the_catalogue(tmp_path: Path) -> None:
    build = "import sys; from flit_core.buildapi import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, tmp_path], cwd=ROOT, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert "app/catalogue/catalogue.toml" in zipfile.ZipFile(wheel).namelist()


def test_the_folders_own_entries_are_added_and_go_first(tmp_path: Path) -> None:
    written(tmp_path, f"[mine]\n{GOOD}[gemma-3-270m]\n{GOOD}")
    known = entries.load(tmp_path)
    assert list(known) == ["gemma-3-270m", "qwen2.5-coder-1.5b", "mine"]
    assert known["gemma-3-270m"].source == known["mine"].source == "hf:a/b:Q8_0"


def test_a_folder_without_a_catalogue_has_the_built_in(tmp_path: Path) -> None:
    assert entries.load(tmp_path) == entries.read(entries.BUILT_IN)


def test_a_path_counts_from_the_catalogue(tmp_path: Path) -> None:
    path = written(tmp_path, '[a]\nsource = "sub/x.gguf"\nfile = "x.gguf"\n[b]\nsource = "/x.gguf"\nfile = "x.gguf"\n')
    assert [entry.source for entry in entries.read(path).values()] == [str(tmp_path / "sub/x.gguf"), "/x.gguf"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[a\n", "is not TOML"),
        ("a = 1\n", r"a is 1; it must be a table"),
        ('[a]\nfile = "m.gguf"\n', "a: .*required field `source`"),
        (f"[a]\n{GOOD}colour = 1\n", "a: .*unknown field `colour`"),
        (f"[a]\n{GOOD}context = 'long'\n", r"a\.context is 'long': Expected `int"),
        (f"[a]\n{GOOD}context = 0\n", r"a\.context is 0: Expected `int` >= 1"),
        (f"[a]\n{GOOD}sha256 = 'abc'\n", r"a\.sha256 is 'abc': Expected `str` matching"),
        (f"[a]\n{GOOD}sha256 = ['{'a' * 64}', '{'b' * 64}']\n", r"a\.sha256 has 2, of 1 files"),
        (f"[a]\n{GOOD}fim_order = 'mps'\n", r"a\.fim_order is 'mps'"),
        ('[a]\nsource = "hf:a/b"\nfile = "../m.gguf"\n', r"a\.file is '\.\./m\.gguf'"),
        ('[a]\nsource = "hf:a/b"\nfile = ".gguf"\n', r"a\.file is '\.gguf'"),
        ('[a]\nsource = "hf:a/b"\nfile = "m\\u0000.gguf"\n', r"a\.file is 'm\\x00\.gguf'"),
        (f'[a]\nsource = "hf:a/b"\nfile = "{"é" * 120}.gguf"\n', r"a\.file is 'é"),
        ('[a]\nsource = "~nobody-of-this-name/m"\nfile = "m.gguf"\n', r"a\.source: ~nobody-of-this-name/m"),
        (f"a = {'[' * 5000}", "nested too deeply"),
    ],
)
def test_an_error_names_file_entry_and_key(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SettingsError, match=words) as caught:
        entries.read(path)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message


def test_a_split_model_has_a_checksum_for_each_file(tmp_path: Path) -> None:
    sums = ["a" * 64, "b" * 64]
    text = f'[a]\nsource = "hf:a/b"\nfile = "m-00001-of-00002.gguf"\nsha256 = {sums}\n'
    entry = entries.read(written(tmp_path, text))["a"]
    assert entry.files == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    assert entry.checksums == sums


def test_a_folder_that_may_not_be_looked_into_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "is_file", denied)  # whoever runs the tests may be allowed everything
    with pytest.raises(SettingsError, match=rf"catalogue\.toml cannot be read: {os.strerror(errno.EACCES)}"):
        entries.load(tmp_path)
