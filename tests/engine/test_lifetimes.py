"""How long what llama.cpp has loaded stays: until the last of those who use it is done, and no longer."""

from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from app.engine.llama import LlamaBackend, LlamaModel
from app.engine.offload import Offload
from app.engine.sizes import Sizes

SIZES = Sizes(n_context=64, n_cells=256, n_slots=2, n_batch=16, n_rows=2, n_threads=1)


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was freed, in order."""
    told: list[str] = []
    for name in ("llama_model_free", "llama_free"):
        free = getattr(llama_cpp, name)

        def note(handle: Any, name: str = name, free: Any = free) -> None:
            told.append(name)
            free(handle)

        monkeypatch.setattr(llama_cpp, name, note)
    return told


def test_a_model_stays_as_long_as_somebody_looks_up_its_words_and_no_longer(toy_folder: Path, freed: list[str]) -> None:
    """Without the garbage collector: memory that waits for it is not given back."""
    model = LlamaModel(toy_folder / "toy-spm.gguf", Offload(gpu_layers=0))
    backend = LlamaBackend(model, SIZES)
    vocabulary = model.vocabulary
    assert model.facts.architecture == "llama"
    backend.close()
    del model, backend
    assert freed == ["llama_free"]
    (token,) = vocabulary.tokenize("Hello")
    assert vocabulary.name(token) in {b"Hello", b" Hello"}
    del vocabulary
    assert freed == ["llama_free", "llama_model_free"]


def test_a_context_that_is_closed_twice_is_freed_once(toy_folder: Path, freed: list[str]) -> None:
    backend = LlamaBackend(LlamaModel(toy_folder / "toy-spm.gguf", Offload(gpu_layers=0)), SIZES)
    backend.close()
    backend.close()
    assert freed == ["llama_free"]
