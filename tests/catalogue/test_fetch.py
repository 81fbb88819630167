"""Names of the catalogue become files: what is there is trusted, what comes is what the catalogue says."""

import hashlib
from pathlib import Path

import pytest

from app.catalogue import fetch
from app.catalogue.entries import Entry
from app.catalogue.store import Store
from app.errors import SettingsError, SourceError
from tests.catalogue.conftest import Get
from tests.catalogue.web_server import REPO, World

BODY = b"GGUF" + bytes(range(256))
SHA = hashlib.sha256(BODY).hexdigest()


def entry(sha256: str | tuple[str, ...] | None = SHA, file: str = "toy.gguf") -> Entry:
    return Entry(source=f"hf:{REPO}", file=file, sha256=sha256, size=len(BODY))


def got(entry: Entry, store: Store, *, verifies: bool = False) -> Path:
    return fetch.get(fetch.wanted("toy", {"toy": entry}), store, lambda n, total: None, verifies=verifies)


def test_a_file_has_the_catalogues_name(world: World, store: Store) -> None:
    world.files = {"upstream-name.gguf": BODY}
    assert got(entry(), store).name == "toy.gguf"


def test_a_file_that_is_there_is_trusted_and_nobody_is_asked(world: World, store: Store) -> None:
    store.root.mkdir()
    (store.root / "toy.gguf").write_bytes(b"another")
    assert got(entry(), store).read_bytes() == b"another"
    assert world.asked == []


def test_verify_reads_it_again(world: World, store: Store) -> None:
    world.files = {"m.gguf": BODY}
    path = got(entry(), store)
    assert got(entry(), store, verifies=True) == path
    path.write_bytes(b"another")
    with pytest.raises(SourceError, match="the checksum is"):
        got(entry(), store, verifies=True)
    with pytest.raises(SourceError, match="no checksum of it is known"):
        got(entry(None), store, verifies=True)


def test_a_source_that_has_another_file_by_now_is_refused_before_it_is_fetched(world: World, store: Store) -> None:
    world.files = {"m.gguf": BODY}
    with pytest.raises(SourceError, match=f"now has another, of the checksum {SHA}; it should be 0000"):
        got(entry("0" * 64), store)
    assert world.sent() == []


def test_a_source_of_another_number_of_files_is_refused(world: World, store: Store) -> None:
    world.files = {"m.gguf": BODY}
    with pytest.raises(SourceError, match="has 1 files, and the catalogue 2"):
        got(entry(None, "toy-00001-of-00002.gguf"), store)


def test_progress_counts_all_parts_of_a_model(world: World, store: Store) -> None:
    world.files = {f"m-0000{n}-of-00002.gguf": BODY for n in (1, 2)}
    seen: list[tuple[int, int | None]] = []
    fetch.get(fetch.wanted(f"hf:{REPO}", {}), store, lambda n, total: seen.append((n, total)))
    assert seen[0] == (0, 2 * len(BODY))
    assert seen[-1] == (2 * len(BODY), 2 * len(BODY))
    assert [n for n, _ in seen] == sorted(n for n, _ in seen)


def test_a_local_model_is_copied_with_all_its_parts(store: Store, toy_folder: Path, tmp_path: Path) -> None:
    whole = (toy_folder / "toy-bpe.gguf").read_bytes()
    for n in (1, 2):
        (tmp_path / f"a-0000{n}-of-00002.gguf").write_bytes(whole)
    first = fetch.get(fetch.wanted(str(tmp_path / "a-00001-of-00002.gguf"), {}), store, lambda n, total: None)
    assert [path.name for path in sorted(first.parent.iterdir())] == ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"]
    assert first.read_bytes() == whole


def test_a_name_that_nothing_has_lists_the_names() -> None:
    with pytest.raises(SettingsError, match=r"nonsense is no name of the catalogue, which has toy; .*hf:"):
        fetch.wanted("nonsense", {"toy": entry()})


@pytest.mark.parametrize("text", ["x" * 300, "~nobody-of-this-name/m.gguf"])
def test_what_is_no_file_of_any_system_is_refused(get: Get, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        get(text)
