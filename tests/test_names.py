"""Which file a model is, and what it is called."""

import sys
from pathlib import Path

import pytest

from app.errors import SettingsError
from app.names import catalogue_entry, file_of, names_of, told_apart

NAMES = {
    "gemma-3-270m-q4_k_m.gguf": ("gemma-3-270m", "gemma-3-270m-q4_k_m"),
    "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M.gguf": ("Qwen2.5-Coder-1.5B-Instruct", "Qwen2.5-Coder-1.5B-Instruct-Q4_K_M"),
    "llama.Q8_0.gguf": ("llama", "llama.Q8_0"),
    "a_IQ3_XXS.gguf": ("a", "a_IQ3_XXS"),
    "model-BF16.gguf": ("model", "model-BF16"),
    "model-f32.gguf": ("model", "model-f32"),
    "gpt-oss-20b-mxfp4.gguf": ("gpt-oss-20b", "gpt-oss-20b-mxfp4"),
    "big-Q4_K_M-00001-of-00003.gguf": ("big", "big-Q4_K_M"),
    "toy-spm.gguf": ("toy-spm",),
    "no-suffix": ("no-suffix",),
    "Q4_K_M.gguf": ("Q4_K_M",),
    "dots.in.name.gguf": ("dots.in.name",),
}


@pytest.mark.parametrize("file", NAMES)
def test_the_id_is_the_file_without_its_quantisation_and_the_file_is_a_name_too(file: str) -> None:
    assert names_of(Path("/some/where") / file) == NAMES[file]


def test_aliases_come_last_in_order_and_once() -> None:
    names = names_of(Path("a-q4_0.gguf"), ("x/y", "a", "x/y", "a-q4_0", "z"))
    assert names == ("a", "a-q4_0", "x/y", "z")


def test_a_file_is_itself_though_it_is_not_there(tmp_path: Path) -> None:
    assert file_of(str(tmp_path / "nope.gguf")) == tmp_path / "nope.gguf"


def test_a_folder_is_the_one_model_in_it(tmp_path: Path) -> None:
    for name in ("big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "README.md"):
        (tmp_path / name).touch()
    assert file_of(str(tmp_path)) == tmp_path / "big-00001-of-00002.gguf"


def test_a_folder_of_no_model_or_several_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no \.gguf file in .*--model"):
        file_of(str(tmp_path))
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(SettingsError, match=r"a\.gguf, b\.gguf; .*--model"):
        file_of(str(tmp_path))


def test_one_executable_serves_the_model_that_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="--model"):
        file_of(None)
    (tmp_path / "a.gguf").touch()
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "segue"))
    assert file_of(None) == tmp_path / "a.gguf"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models' folder."""
    monkeypatch.setenv("SEGUE_MODELS", str(tmp_path))
    return tmp_path


def test_a_name_of_the_catalogue_is_its_file(folder: Path) -> None:
    with pytest.raises(SettingsError, match=r"gemma-3-270m is not downloaded; .*: segue models get gemma-3-270m$"):
        file_of("gemma-3-270m")
    (folder / "gemma-3-270m-q4_k_m.gguf").touch()
    assert file_of("gemma-3-270m") == folder / "gemma-3-270m-q4_k_m.gguf"


def test_a_file_of_the_folder_is_named_with_its_ending_and_without(folder: Path) -> None:
    (folder / "mine-Q8_0.gguf").touch()
    assert file_of("mine-Q8_0") == file_of("mine-Q8_0.gguf") == folder / "mine-Q8_0.gguf"


def test_a_file_of_the_working_folder_goes_first(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a.gguf").touch()
    here = tmp_path_factory.mktemp("here")
    (here / "a.gguf").touch()
    monkeypatch.chdir(here)
    assert file_of("a.gguf") == Path("a.gguf")


def test_what_is_no_model_says_where_it_was_looked_for(folder: Path) -> None:
    with pytest.raises(SettingsError, match=r"no file nonsense, .*segue models list"):
        file_of("nonsense")
    with pytest.raises(SettingsError, match=r"segue models get hf:a/b:Q8_0$"):
        file_of("hf:a/b:Q8_0")


def test_the_catalogue_knows_a_file_wherever_it_lies(folder: Path) -> None:
    entry = catalogue_entry(Path("/else/where/gemma-3-270m-q4_k_m.gguf"))
    assert entry
    assert entry.licence == "Gemma Terms of Use"
    assert catalogue_entry(Path("/else/where/mine.gguf")) is None


@pytest.mark.parametrize("name", ["x" * 300, f"/{'x' * 300}/m.gguf"])
def test_what_no_system_lets_a_file_be_called_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="cannot be looked at: File name too long"):
        file_of(name)


def apart(*models: tuple[str, tuple[str, ...]]) -> list[tuple[str, ...]]:
    return told_apart((Path(f"/some/where/{file}.gguf"), aliases) for file, aliases in models)


def test_several_models_have_the_names_that_each_has_alone() -> None:
    assert apart(("a-Q4_K_M", ()), ("b", ("c", "d"))) == [("a", "a-Q4_K_M"), ("b", "c", "d")]


def test_a_short_name_that_several_would_have_is_whose_alias_it_is() -> None:
    assert apart(("a-Q4_K_M", ()), ("a-Q8_0", ("x",))) == [("a-Q4_K_M",), ("a-Q8_0", "x")]
    assert apart(("a-Q4_K_M", ()), ("a-Q8_0", ("a",))) == [("a-Q4_K_M",), ("a", "a-Q8_0")]
    assert apart(("a", ()), ("a-Q8_0", ())) == [("a",), ("a-Q8_0",)], "a file's whole name is its own"


@pytest.mark.parametrize(
    "models",
    [
        [("a", ()), ("a", ())],
        [("a", ()), ("b", ("a",))],
        [("a", ("x",)), ("b", ("x",))],
        [("b", ("a",)), ("a-Q8_0", ())],
    ],
)
def test_a_name_that_two_models_would_have_is_refused(models: list[tuple[str, tuple[str, ...]]]) -> None:
    with pytest.raises(SettingsError, match=r"\[\[models\]\] number 2 is called '.*', as number 1 is"):
        apart(*models)
