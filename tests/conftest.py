"""Servers, one of each kind for all tests; each must end with success when they are over."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import toys
from tests.oracle import Oracle, Tokenizer
from tests.servers import ROOT, Api, Server, running
from tests.toys import Toy

REAL_MODEL = "gemma-3-270m-q4_k_m.gguf"


@dataclass(frozen=True, eq=False)
class Served:
    """A toy model behind a server: the model, its right answers, and a client."""

    toy: Toy
    oracle: Oracle
    api: Api
    server: Server


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toys")
    toys.write_all(folder)
    return folder


def _served(toy: Toy, folder: Path, logs: Path, *flags: str) -> Iterator[Served]:
    path = folder / f"{toy.name}.gguf"
    tokenizer = Tokenizer(path)
    with running(logs / f"{toy.name}.log", "--model", str(path), "--threads", "1", *flags) as server:
        api = Api(server.url)
        yield Served(toy, Oracle(toy, tokenizer), api, server)
        api.http.close()
    tokenizer.close()


@pytest.fixture(scope="session")
def spm(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """toy-spm, with defaults and an alias."""
    yield from _served(toys.spm(), toy_folder, tmp_path_factory.mktemp("spm"), "--alias", "other/name")


@pytest.fixture(scope="session")
def bpe(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """toy-bpe, with a small context."""
    yield from _served(toys.bpe(), toy_folder, tmp_path_factory.mktemp("bpe"), "--ctx-size", "512")


@pytest.fixture(scope="session")
def strict(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """toy-spm, as strict as OpenAI, with a small context."""
    flags = ("--strict", "--ctx-size", "512")
    for served in _served(toys.spm(), toy_folder, tmp_path_factory.mktemp("strict"), *flags):
        served.api.defaults["model"] = "toy-spm"
        yield served


@pytest.fixture(scope="session", params=["spm", "bpe"])
def served(request: pytest.FixtureRequest) -> Served:
    """Each toy in turn."""
    chosen: Served = request.getfixturevalue(request.param)
    return chosen


@pytest.fixture(scope="session")
def real_model() -> Path:
    """The real model's file; without it tests are skipped, but in CI they fail."""
    path = Path(os.environ.get("SEGUE_MODELS", ROOT / "models")) / REAL_MODEL
    if not path.is_file():
        message = f"{path} is not there: scripts/get_model fetches it"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path


@pytest.fixture(scope="session")
def gemma(real_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The real model."""
    flags = ("--model", str(real_model), "--ctx-size", "2048")
    with running(tmp_path_factory.mktemp("gemma") / "log", *flags) as server:
        api = Api(server.url)
        yield api
        api.http.close()
