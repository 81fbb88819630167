"""What llama.cpp answers, as the engine hears it: a lack of room is an event, all else is a fault, and told."""

import errno
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import pytest

from app.engine import stream
from app.engine.backend import Chunk
from app.engine.ggml import Device
from app.engine.llama import LlamaBackend, LlamaModel, ggml, hearing, recoding
from app.engine.offload import Offload
from app.engine.recode import Recoded
from app.engine.sizes import Sizes
from app.errors import GenerationFailed, ModelError, NoRoom
from tests import toys

SIZES = Sizes(n_context=64, n_cells=256, n_slots=2, n_batch=16, n_rows=2, n_threads=1)
LETTER = 300
"""A token of the toy."""


@pytest.fixture
def model(toy_folder: Path) -> LlamaModel:
    return LlamaModel(toy_folder / "toy-spm.gguf", Offload())


def test_a_full_cache_is_a_lack_of_room_and_what_is_freed_can_be_filled(model: LlamaModel) -> None:
    backend = LlamaBackend(model, SIZES)
    for start in range(0, SIZES.n_cells, SIZES.n_batch):
        backend.decode([Chunk(0, start, [LETTER] * SIZES.n_batch, 0)])
    with pytest.raises(NoRoom):
        backend.decode([Chunk(1, 0, [LETTER], 1)])
    backend.drop(0)
    assert backend.decode([Chunk(1, 0, [LETTER], 1)]).shape == (1, model.vocabulary.n_tokens)


@pytest.mark.parametrize(
    ("status", "error"), [(1, NoRoom), (2, GenerationFailed), (-1, GenerationFailed), (-3, GenerationFailed)]
)
def test_a_decode_is_told_by_its_status(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch, status: int, error: type[Exception]
) -> None:
    backend = LlamaBackend(model, SIZES)
    monkeypatch.setattr(llama_cpp, "llama_decode", lambda *_: status)
    with pytest.raises(error, match=str(status) if error is GenerationFailed else "free cells"):
        backend.decode([Chunk(0, 0, [LETTER], 1)])


def complaining(words: bytes) -> Callable[..., None]:
    """A function of llama.cpp's that gives nothing but an error."""

    def fail(*_: object) -> None:
        hearing.hear(4, words)

    return fail


def test_weights_that_do_not_fit_are_told_with_what_takes_less(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = b"llama_model_load: error loading model: unable to allocate CPU buffer\n"
    monkeypatch.setattr(llama_cpp, "llama_model_load_from_file", complaining(words))
    with pytest.raises(ModelError, match=r"unable to allocate CPU buffer; memory is short: fewer --gpu-layers") as told:
        LlamaModel(model.path, Offload())
    assert str(model.path) in told.value.message


def test_a_context_that_does_not_fit_is_told_with_what_makes_it_smaller(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    hearing.forget()
    monkeypatch.setattr(llama_cpp, "llama_init_from_model", complaining(b"failed to allocate buffer for kv cache\n"))
    with pytest.raises(ModelError, match=r"256 cells: failed to allocate buffer for kv cache; .*--cache-size") as told:
        LlamaBackend(model, SIZES)
    assert str(model.path) in told.value.message


@pytest.mark.parametrize("recodes", [False, True])
def test_recoded_weights_give_the_same_logits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recodes: bool) -> None:
    """What the one-hot embedding of a token picks of the output matrix, as another reader finds it there."""
    monkeypatch.setattr(recoding, "helps_here", lambda _: recodes)
    monkeypatch.setattr(recoding, "_ROWS", 1)
    toy, kind = toys.bpe(), gguf.GGMLQuantizationType.Q5_0
    model = LlamaModel(toy.write(tmp_path, matrices=kind), Offload(gpu_layers=0))
    wanted = gguf.quants.dequantize(gguf.quants.quantize(toy.output, kind), kind)
    backend = LlamaBackend(model, SIZES)
    assert model.is_recoded == recodes
    in_file = sum(size for _, size in ggml.tensors(model.path))
    assert model.facts.n_bytes == in_file
    assert (model.n_bytes > in_file) == recodes
    for token in range(0, toy.n_vocab, 20):
        row = backend.decode([Chunk(0, 0, [token], 1)])[0]
        assert row == pytest.approx(wanted[:, token], abs=2e-3)
        backend.drop(0)


def test_whether_weights_are_recoded_shows_in_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = toys.bpe().write(tmp_path, matrices=gguf.GGMLQuantizationType.Q5_0)
    found = set()
    for recodes in (False, True):
        monkeypatch.setattr(recoding, "helps_here", lambda _, recodes=recodes: recodes)
        found.add(LlamaModel(path, Offload(gpu_layers=0)).digest)
    assert len(found) == 2


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), MemoryError()], ids=repr)
@pytest.mark.parametrize("n_before", [0, 1, 2, 3, 4])
def test_a_model_that_cannot_be_read_while_it_is_recoded_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, n_before: int
) -> None:
    recode, calls = Recoded._recode, count()

    def fail(self: Recoded, *given: Any) -> int:
        if next(calls) == n_before:
            raise error
        return recode(self, *given)

    monkeypatch.setattr(recoding, "helps_here", lambda _: True)
    monkeypatch.setattr(Recoded, "_recode", fail)
    path = toys.bpe().write(tmp_path, matrices=gguf.GGMLQuantizationType.Q5_0)
    with pytest.raises(ModelError, match="Input/output error"):
        LlamaModel(path, Offload(gpu_layers=0))


@pytest.mark.parametrize(
    "offload",
    [Offload(repack=False), Offload(mmap=True), Offload(mmap=True, mlock=True)],
    ids=["as in the file", "mapped", "mapped and locked"],
)
def test_weights_that_stay_as_they_are_in_the_file_are_not_recoded(
    monkeypatch: pytest.MonkeyPatch, offload: Offload
) -> None:
    monkeypatch.setattr(type(ggml), "layouts", lambda _: {"AMX"})
    monkeypatch.setattr(type(ggml), "devices", lambda _: [Device("CPU", "a processor", False, 1 << 30)])
    assert recoding.helps_here(Offload()) == stream.is_possible
    assert not recoding.helps_here(offload)


def test_weights_are_recoded_only_for_processors_with_matrix_units_and_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(type(ggml), "devices", lambda _: [Device("CPU", "a processor", False, 1 << 30)])
    monkeypatch.setattr(type(ggml), "layouts", lambda _: {"CPU_REPACK"})
    assert not recoding.helps_here(Offload())
    monkeypatch.setattr(type(ggml), "layouts", lambda _: {"AMX"})
    monkeypatch.setattr(type(ggml), "devices", lambda _: [Device("CUDA0", "a GPU", True, 1 << 30)])
    assert not recoding.helps_here(Offload(gpu_layers=0))
