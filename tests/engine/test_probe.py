"""The trial decode: a child that dies, in whatever way, costs a line; one that decodes costs nothing more."""

import sys
from pathlib import Path

import llama_cpp
import pytest

from app.engine import llama, probe
from app.engine.offload import Offload
from app.engine.probe import Trial
from app.engine.sizes import Sizes
from app.errors import ModelError

SIZES = Sizes(n_context=64, n_cells=256, n_slots=1, n_batch=16, n_rows=1, n_threads=1)


@pytest.fixture
def trial(toy_folder: Path) -> Trial:
    return Trial(str(toy_folder / "toy-spm.gguf"), Offload(), SIZES)


def child(code: str) -> list[str]:
    return [sys.executable, "-c", f"import ctypes, os, resource, signal, sys; resource.setrlimit(4, (0, 0)); {code}"]


def refused(trial: Trial, code: str | None = None, patience: float = 60) -> str:
    with pytest.raises(ModelError) as raised:
        probe.check(trial, child(code) if code else None, patience)
    message = raised.value.message
    assert "\n" not in message
    assert message.startswith(f"{trial.path}: ")
    return message


def test_a_model_that_decodes_passes(trial: Trial) -> None:
    probe.check(trial)
    asked = Offload(gpu_layers=0, repack=False, cache_type_k="q8_0", cache_type_v="q4_0", mlock=True, mmap=False)
    assert probe.check(trial._replace(offload=asked)) == asked


@pytest.mark.parametrize(
    ("code", "reason", "remedy"),
    [
        ("ctypes.string_at(0)", "SIGSEGV", "--no-repack"),
        ("os.kill(os.getpid(), signal.SIGILL)", "SIGILL", "scripts/install"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "memory", "--gpu-layers"),
        ("os.kill(os.getpid(), signal.SIGBUS)", "SIGBUS", "download"),
        ("sys.stderr.write('x.cpp:5: GGML_ASSERT(a > 0) failed\\n'); os.abort()", "GGML_ASSERT(a > 0)", "--no-repack"),
        ("os.kill(os.getpid(), signal.SIGFPE)", "crashed (SIGFPE)", "--no-repack"),
        ("raise RuntimeError('no such library')", "no such library", "scripts/install"),
        ("sys.exit(1)", "no reason", "scripts/install"),
    ],
)  # fmt: skip
def test_a_child_that_dies_is_told_by_the_way_it_died(trial: Trial, code: str, reason: str, remedy: str) -> None:
    message = refused(trial, code)
    assert reason in message
    assert remedy in message


def test_a_child_that_hangs_is_ended(trial: Trial) -> None:
    assert "did not end" in refused(trial, "signal.pause()", patience=0.5)


def test_a_cut_model_is_told_in_llama_cpps_words(tmp_path: Path, trial: Trial) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(Path(trial.path).read_bytes()[:-100_000])
    message = refused(trial._replace(path=str(path)))
    assert "not within the file bounds" in message
    assert "download it again" in message


def test_an_unknown_architecture_is_named_with_the_version_that_lacks_it(tmp_path: Path, trial: Trial) -> None:
    path = tmp_path / "future.gguf"
    name = b"\x05\x00\x00\x00\x00\x00\x00\x00llam"
    path.write_bytes(Path(trial.path).read_bytes().replace(name + b"a", name + b"x", 1))
    message = refused(trial._replace(path=str(path)))
    assert "'llamx'" in message
    assert "llama-cpp-python 0." in message
    assert "upgrade" in message


def test_a_model_whose_logits_are_no_numbers_is_refused(tmp_path: Path, trial: Trial) -> None:
    path = tmp_path / "nan.gguf"
    # The last norm's weight, 1/32 each, becomes NaN.
    numbers = b"\x00\x00\x00\x3d" * 1024
    data = Path(trial.path).read_bytes()
    assert data.count(numbers) == 1
    path.write_bytes(data.replace(numbers, b"\x00\x00\xc0\x7f" * 1024))
    assert "no numbers" in refused(trial._replace(path=str(path)))


def test_a_folder_with_an_app_of_its_own_does_not_mislead_the_child(
    tmp_path: Path, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("raise SystemExit('another app')")
    monkeypatch.chdir(tmp_path)
    probe.check(trial)


def test_weights_are_laid_out_anew_unless_it_is_refused(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """What llama.cpp is told: its own answer does not betray it on a model that is not quantised."""
    load, told = llama_cpp.llama_model_load_from_file, []

    def spy(path: bytes, params: object) -> object:
        told.append(params.use_extra_bufts)  # type: ignore[attr-defined]
        return load(path, params)

    monkeypatch.setattr(llama_cpp, "llama_model_load_from_file", spy)
    for repack in (True, False):
        llama.LlamaModel(Path(trial.path), Offload(repack=repack))
    assert told == [True, False]


def test_a_vocabulary_outlives_its_backend(trial: Trial) -> None:
    """The last tokens of a stream are looked up when the engine has closed the backend already."""
    model = llama.LlamaModel(Path(trial.path), Offload())
    vocabulary = model.vocabulary
    backend = llama.LlamaBackend(model, SIZES)
    backend.close()
    del model, backend
    assert vocabulary.name(1) == b"<s>"
