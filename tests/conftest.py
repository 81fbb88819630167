"""Servers, one of each kind for all tests; each must end with success when they are over."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import toys
from tests.oracle import Oracle, Tokenizer
from tests.servers import ROOT, Api, Server, running
from tests.toys import Toy

REAL_MODEL = "gemma-3-270m-q4_k_m.gguf"
INFILL_MODEL = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"

KEYS = ("sk-first-8e5c1f", "sk-second-77ab02")
FILED_KEYS = ("sk-filed-41d9c3", "sk-filed-b0e6aa", "sk-ключ")
NAMED_ORIGIN = "https://app.example"
TEMPLATE = "<|mark|>{suffix}<|mark|>{prefix} and<|mark|>"


def pytest_configure() -> None:
    """A shell's background job ignores SIGINT, and so would all that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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


def _served(toy: Toy, folder: Path, logs: Path, *flags: str, key: str | None = None) -> Iterator[Served]:
    path = folder / f"{toy.name}.gguf"
    tokenizer = Tokenizer(path)
    with running(logs / f"{toy.name}.log", "--model", str(path), "--threads", "1", *flags) as server:
        api = Api(server.url, key=key)
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


@pytest.fixture(scope="session")
def guarded(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """toy-bpe behind keys, open to two more origins; it reads a suffix before its prefix."""
    folder = tmp_path_factory.mktemp("guarded")
    filed = folder / "keys"
    filed.write_bytes(f"{FILED_KEYS[0]}\r\n\n  {FILED_KEYS[1]}  \n{FILED_KEYS[2]}".encode())
    flags = [word for key in KEYS for word in ("--api-key", key)]
    flags += ["--api-key-file", str(filed), "--cors-origin", NAMED_ORIGIN, "--cors-origin", "null"]
    yield from _served(toys.bpe(), toy_folder, folder, *flags, "--fim-order", "spm", "--ctx-size", "512", key=KEYS[0])


@pytest.fixture(scope="session")
def templated(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """toy-spm with a template for insertions, open to every origin."""
    flags = ("--fim-template", TEMPLATE, "--cors-origin", "*", "--ctx-size", "512")
    yield from _served(toys.spm(), toy_folder, tmp_path_factory.mktemp("templated"), *flags)


@pytest.fixture(scope="session", params=["spm", "bpe"])
def served(request: pytest.FixtureRequest) -> Served:
    """Each toy in turn."""
    chosen: Served = request.getfixturevalue(request.param)
    return chosen


def models_folder() -> Path:
    return Path(os.environ.get("SEGUE_MODELS", ROOT / "models"))


@pytest.fixture(scope="session")
def real_model() -> Path:
    """The real model's file; without it tests are skipped, but in CI they fail."""
    path = models_folder() / REAL_MODEL
    if not path.is_file():
        message = f"{path} is not there: scripts/get_model fetches it"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A model that was trained to fill gaps. Without its file tests are skipped, in CI too: it is 1.1 GB."""
    path = models_folder() / INFILL_MODEL
    if not path.is_file():
        pytest.skip(f"{path} is not there: scripts/get_model qwen2.5-coder-1.5b fetches it")
    with running(tmp_path_factory.mktemp("qwen") / "log", "--model", str(path), "--ctx-size", "2048") as server:
        api = Api(server.url)
        yield api
        api.http.close()


@pytest.fixture(scope="session")
def gemma(real_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The real model."""
    flags = ("--model", str(real_model), "--ctx-size", "2048")
    with running(tmp_path_factory.mktemp("gemma") / "log", *flags) as server:
        api = Api(server.url)
        yield api
        api.http.close()
