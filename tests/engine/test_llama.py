"""What llama.cpp answers, as the engine hears it: a lack of room is an event, all else is a fault, and told."""

from collections.abc import Callable
from pathlib import Path

import llama_cpp
import pytest

from app.engine.backend import Chunk
from app.engine.llama import LlamaBackend, LlamaModel, hearing
from app.engine.offload import Offload
from app.engine.sizes import Sizes
from app.errors import GenerationFailed, ModelError, NoRoom

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
