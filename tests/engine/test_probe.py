"""The trial decode: a child that dies, in whatever way, costs a line; one that decodes costs nothing more."""

import os
import sys
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from app.engine import llama, probe
from app.engine.backend import Chunk
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


def test_a_child_that_nobody_wants_any_more_is_ended(trial: Trial, tmp_path: Path) -> None:
    """It would hang for ever, and is ended long before its time is over."""
    looks = iter([None, True, False])
    begun = tmp_path / "begun"
    code = f"open({str(begun)!r}, 'w').write(str(os.getpid())); signal.pause()"
    with pytest.raises(ModelError, match="called off"):
        probe.check(trial, child(code), 1e6, lambda _: next(looks) if begun.exists() and begun.read_text() else None)
    assert next(looks, None) is None
    with pytest.raises(ProcessLookupError):
        os.kill(int(begun.read_text()), 0)


def test_a_load_that_is_called_off_ends(trial: Trial) -> None:
    shares: list[float] = []

    def progress(done: float) -> bool:
        shares.append(done)
        return False

    with pytest.raises(ModelError):
        llama.LlamaModel(Path(trial.path), Offload(), progress)
    assert len(shares) == 1


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


def test_a_batch_and_a_single_token_are_tried(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take different kernels."""
    read: list[list[int]] = []

    class Heard(llama.LlamaBackend):
        def decode(self, chunks: Ordered[Chunk]) -> Any:
            read.append([len(chunk.tokens) for chunk in chunks])
            return super().decode(chunks)

    monkeypatch.setattr(probe, "LlamaBackend", Heard)
    probe._decode(trial)
    assert read == [[2], [1]]


def test_a_model_that_cannot_decode_is_refused(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "llama_decode", lambda *_: -3)
    with pytest.raises(ModelError, match=r"answered -3; segue needs a model that writes"):
        probe._decode(trial)


def test_a_folder_with_an_app_of_its_own_does_not_mislead_the_child(
    tmp_path: Path, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("raise SystemExit('another app')")
    monkeypatch.chdir(tmp_path)
    probe.check(trial)


class Told:
    """The parameters that llama.cpp was given; its own answers do not betray most of them on this machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model, self.context = list[Any](), list[Any]()
        for name, told in (("llama_model_load_from_file", self.model), ("llama_init_from_model", self.context)):
            monkeypatch.setattr(llama_cpp, name, self._spy(getattr(llama_cpp, name), told))

    @staticmethod
    def _spy(function: Callable[..., object], told: list[Any]) -> Callable[..., object]:
        def spy(what: object, params: object) -> object:
            told.append(params)
            return function(what, params)

        return spy


def test_what_is_asked_is_what_llama_cpp_is_told(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told(monkeypatch)
    for offload in (
        Offload(),
        Offload(gpu_layers=3, main_gpu=2, repack=False, flash_attn="on", cache_type_k="q8_0", kv_offload=False),
        Offload(gpu_layers="all", tensor_split=(3.0, 0.5), flash_attn="off", cache_type_v="f32"),
    ):
        llama.LlamaBackend(llama.LlamaModel(Path(trial.path), offload), SIZES)
    default, one, split = told.model
    assert [params.n_gpu_layers for params in told.model] == [-1, 3, -1]
    assert [params.use_extra_bufts for params in told.model] == [True, False, True]
    assert (default.split_mode, split.split_mode) == (llama_cpp.LLAMA_SPLIT_MODE_LAYER,) * 2
    assert (one.split_mode, one.main_gpu) == (llama_cpp.LLAMA_SPLIT_MODE_NONE, 2)
    assert split.tensor_split[:4] == [3.0, 0.5, 0.0, 0.0]
    assert not default.tensor_split
    assert [params.flash_attn_type for params in told.context] == [-1, 1, 0]
    assert [params.offload_kqv for params in told.context] == [True, False, True]
    # ggml.h: f32 is 0, f16 1, q8_0 8
    assert [(params.type_k, params.type_v) for params in told.context] == [(1, 1), (8, 1), (1, 0)]


@pytest.mark.parametrize(
    ("mmap", "mlock", "mode"),
    [
        (None, False, "AUTO"),
        (True, False, "MMAP"),
        (False, False, "NONE"),
        (None, True, "MMAP_MLOCK"),
        (True, True, "MMAP_MLOCK"),
        (False, True, "MLOCK"),
    ],
)
def test_how_the_file_is_read(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, mmap: bool | None, mlock: bool, mode: str
) -> None:
    told = Told(monkeypatch)
    llama.LlamaModel(Path(trial.path), Offload(mmap=mmap, mlock=mlock))
    assert told.model[0].load_mode == getattr(llama_cpp, f"LLAMA_LOAD_MODE_{mode}")


def test_a_vocabulary_outlives_its_backend(trial: Trial) -> None:
    """The last tokens of a stream are looked up when the engine has closed the backend already."""
    model = llama.LlamaModel(Path(trial.path), Offload())
    vocabulary = model.vocabulary
    backend = llama.LlamaBackend(model, SIZES)
    backend.close()
    del model, backend
    assert vocabulary.name(1) == b"<s>"
