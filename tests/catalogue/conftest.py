"""A world to download from, and a folder to download into."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.catalogue import fetch
from app.catalogue.store import Store
from tests.catalogue.web_server import World, serving

Get = Callable[..., Path]
"""Fetches a source into the folder."""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with serving(World()) as world:
        monkeypatch.setenv("HF_ENDPOINT", world.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield world


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


@pytest.fixture
def get(store: Store) -> Get:
    def fetched(source: str, called: str | None = None, *, verifies: bool = False) -> Path:
        return fetch.get(fetch.wanted(source, {}), store, lambda n, total: None, called, verifies=verifies)

    return fetched
