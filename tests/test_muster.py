"""What is decided of several models before any is loaded, and a load that is called off."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from app import muster
from app.engine.llama import LlamaBackend
from app.errors import ModelError, SettingsError, Unloadable
from app.member import State
from app.muster import Place, check_budget, create_house, places
from app.settings import ModelSettings, Settings
from tests import toys

PATIENCE = 30.0
COMPUTE = 256 << 20
"""What a model computes in, about."""


def settings(folder: Path, *names: str, **fields: Any) -> Settings:
    own = {key: fields.pop(key) for key in ("load", "ctx_size", "cache_size") if key in fields}
    return Settings(models=tuple(ModelSettings(model=str(folder / f"{name}.gguf"), **own) for name in names), **fields)


def test_a_file_that_is_missing_or_no_model_is_told_before_any_is_loaded(toy_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such model file"):
        places(settings(toy_folder, "toy-spm", "nope", load="first-use"))
    (tmp_path / "page.gguf").write_text("<html>")
    with pytest.raises(ModelError, match="web page"):
        places(settings(tmp_path, "page", load="first-use"))


def test_a_wrong_template_is_told_before_any_is_loaded(toy_folder: Path) -> None:
    model = ModelSettings(model=str(toy_folder / "toy-spm.gguf"), load="first-use", fim_template="nothing")
    with pytest.raises(SettingsError, match="fim_template"):
        places(Settings(models=(model,)))


def test_one_file_twice_has_one_name_twice(toy_folder: Path) -> None:
    with pytest.raises(SettingsError, match=r"number 2 is called 'toy-spm'"):
        places(settings(toy_folder, "toy-spm", "toy-spm"))


def test_models_that_are_to_be_there_at_the_start_must_fit_together(toy_folder: Path) -> None:
    wanted = places(settings(toy_folder, "toy-spm", "toy-bpe"))
    needed = sum(place.n_bytes for place in wanted)
    assert check_budget(Settings(memory_budget=needed), wanted) == needed
    with pytest.raises(SettingsError) as raised:
        check_budget(Settings(memory_budget=needed - 1), wanted)
    for word in ("memory_budget", "toy-spm", "toy-bpe", "first-use"):
        assert word in raised.value.message
    later = places(settings(toy_folder, "toy-spm", "toy-bpe", load="first-use"))
    assert check_budget(Settings(memory_budget=1), later) == 1
    assert check_budget(Settings(memory_budget=1), wanted[:1]) == 1, "one alone takes what it takes"


def test_what_a_model_takes_is_its_weights_its_cache_and_what_it_computes_in(toy_folder: Path) -> None:
    toy = toy_folder / "toy-spm.gguf"
    chosen = Settings(model=str(toy), load="first-use", cache_size=4096, cache_type_k="f32", ctx_size=512)
    (place,) = places(chosen)
    weights = sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(toy).tensors)
    # One layer, one head.
    assert place.n_bytes == weights + 4096 * toys.N_HEAD * (4 + 2) + COMPUTE
    assert place.n_context == 512


def test_what_a_file_does_not_tell_counts_nothing(tmp_path: Path) -> None:
    """A recurrent model's cache."""
    out = gguf.GGUFWriter(tmp_path / "a.gguf", "rwkv7")
    out.add_tensor("output_norm.weight", np.zeros(100, np.float32))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    (place,) = places(settings(tmp_path, "a", load="first-use"))
    assert place.n_bytes == 400 + COMPUTE


def test_a_file_that_only_llama_cpp_may_read_counts_whole(tmp_path: Path) -> None:
    (tmp_path / "odd.gguf").write_bytes(b"GGUF" + bytes(1000))
    (place,) = places(settings(tmp_path, "odd", load="first-use"))
    assert (place.n_bytes, place.n_context) == (1004 + COMPUTE, 8192)


def test_a_cache_smaller_than_the_context_is_refused_before_any_is_loaded(toy_folder: Path) -> None:
    with pytest.raises(SettingsError, match="toy-spm: cache_size is 100"):
        places(settings(toy_folder, "toy-spm", "toy-bpe", ctx_size=512, cache_size=100))


def test_one_model_that_is_loaded_at_once_is_not_read_before(toy_folder: Path) -> None:
    """Which would cost every start the time that it takes to import gguf."""
    program = "import sys; from app.cli import serve; from app import muster; from app.settings import Settings\n"
    program += f"muster.places(Settings(model={str(toy_folder / 'toy-spm.gguf')!r}))\n"
    program += "print(*{'gguf'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


class Loading:
    """A load that goes on until it is told not to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_begun = threading.Event()
        self.has_ended = False
        monkeypatch.setattr(muster, "load", self)

    def __call__(self, _: Settings, progress: Any) -> Any:
        self.has_begun.set()
        while progress(0.5) is not False:
            pass
        self.has_ended = True
        raise ModelError("called off")


async def test_why_a_load_failed_is_told_without_where_the_file_lies(toy_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "toy-spm.gguf"
    path.write_bytes((toy_folder / "toy-spm.gguf").read_bytes())
    chosen = settings(tmp_path, "toy-spm", load="first-use")
    house = create_house(chosen, places(chosen), {}, 1)
    for content in ("<html>", None):
        path.unlink() if content is None else path.write_text(content)
        with pytest.raises(Unloadable, match=r"toy-spm cannot be loaded: toy-spm\.gguf: ") as raised:
            await house.take(house.seats[0])
        assert str(tmp_path) not in raised.value.message


async def test_the_end_calls_a_load_off_and_waits_for_that(toy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loading = Loading(monkeypatch)
    chosen = settings(toy_folder, "toy-spm", load="first-use")
    house = create_house(chosen, places(chosen), {}, 1)
    asked = asyncio.ensure_future(house.take(house.seats[0]))
    assert await asyncio.to_thread(loading.has_begun.wait, PATIENCE)
    async with asyncio.timeout(PATIENCE):
        await house.close()
    assert loading.has_ended
    assert asked.exception()
    assert house.seats[0].state is State.UNLOADED


async def test_a_load_that_ends_though_it_was_called_off_is_undone(
    toy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(toy_folder, "toy-spm", load="first-use", ctx_size=256)
    (place,) = places(chosen)
    begun, gate, closed = threading.Event(), threading.Event(), list[Any]()

    def load(self: Place, _: Any) -> Any:
        begun.set()
        assert gate.wait(PATIENCE)
        return whole

    def note(self: LlamaBackend) -> None:
        closed.append(self)

    whole = place.load()
    monkeypatch.setattr(Place, "load", load)
    monkeypatch.setattr(LlamaBackend, "close", note)
    house = create_house(chosen, [place], {}, 1)
    asked = asyncio.ensure_future(house.take(house.seats[0]))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    closing = asyncio.ensure_future(house.close())
    await asyncio.sleep(0)  # it has called everything off
    gate.set()
    async with asyncio.timeout(PATIENCE):
        await closing
    assert closed == [whole.backend]
    assert asked.exception()
    monkeypatch.undo()
    whole.backend.close()
