"""What the settings, the model and the machine make of a context's sizes."""

import os

import pytest

from app.asgi import sizes_of
from app.errors import SettingsError
from app.settings import Settings


def test_a_system_that_tells_no_affinity_is_asked_for_its_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert sizes_of(Settings(), 4096).n_threads == 7


@pytest.mark.parametrize(
    ("trained", "asked", "n_context"), [(4096, None, 4096), (32768, None, 8192), (4096, 6000, 6000)]
)
def test_the_context_is_the_models_up_to_8192_unless_it_is_set(trained: int, asked: int | None, n_context: int) -> None:
    sizes = sizes_of(Settings(ctx_size=asked), trained)
    assert sizes.n_context == n_context
    assert sizes.n_cells >= n_context
    assert sizes.n_cells % 256 == 0


@pytest.mark.parametrize("parallel", [1, 16, 64, 128])
def test_every_slot_has_a_row_or_llama_cpp_would_abort(parallel: int) -> None:
    sizes = sizes_of(Settings(parallel=parallel), 4096)
    assert parallel < sizes.n_slots <= 256
    assert sizes.n_rows >= sizes.n_slots


def test_a_cache_that_holds_no_longest_request_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"cache_size is 100.*ctx_size, which is 200"):
        sizes_of(Settings(cache_size=100, ctx_size=200), 4096)
