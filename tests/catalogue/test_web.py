"""Files of any web server, over connections that break."""

import struct

import pytest

from app.catalogue.store import Store
from app.errors import SettingsError, SourceError
from tests.catalogue.conftest import Get
from tests.catalogue.web_server import World

BODY = struct.pack("<4sIQQ", b"GGUF", 3, 0, 0) + bytes(range(256)) * 100


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow one another at once."""
    monkeypatch.setattr("app.catalogue.web.PAUSES", (0.0, 0.0))


def test_a_file_is_called_as_its_address_ends(world: World, get: Get) -> None:
    world.files = {"a%20b.gguf": BODY}
    path = get(f"{world.url}/plain/a%20b.gguf")
    assert path.name == "a b.gguf"
    assert path.read_bytes() == BODY


def test_an_address_that_ends_otherwise_is_refused(get: Get) -> None:
    with pytest.raises(SettingsError, match=r"must end with \.gguf"):
        get("https://host.invalid/model.bin")


@pytest.mark.parametrize("knows_ranges", [True, False])
def test_what_broke_off_is_gone_on_with(world: World, get: Get, knows_ranges: bool) -> None:
    world.files, world.knows_ranges = {"m.gguf": BODY}, knows_ranges
    world.cuts = [0, 1000, 2000]  # the first is for who asks what the file is
    assert get(f"{world.url}/plain/m.gguf").read_bytes() == BODY
    assert world.sent() == [None, None, "bytes=1000-", "bytes=3000-" if knows_ranges else "bytes=2000-"]


def test_a_server_that_fails_for_a_while_is_asked_again(world: World, get: Get) -> None:
    world.files = {"m.gguf": BODY}
    world.failures = [0, 503, 0, 500, 429]  # the first request is what finds it
    world.cuts = [0, 1000]
    assert get(f"{world.url}/plain/m.gguf").read_bytes() == BODY
    assert world.sent() == [None, None, None, "bytes=1000-", "bytes=1000-", "bytes=1000-"]


def test_a_server_that_only_fails_is_given_up(world: World, get: Get) -> None:
    world.files, world.failures = {"m.gguf": BODY}, [503]
    with pytest.raises(SourceError, match="the server answers 503 Service Unavailable"):
        get(f"{world.url}/plain/m.gguf")


def test_a_file_that_changes_under_the_download_is_refused(world: World, get: Get) -> None:
    world.files, world.cuts = {"m.gguf": BODY}, [0, 1000]
    world.etags = ['"one"', '"one"', '"two"']
    with pytest.raises(SourceError, match="has changed while it was downloaded"):
        get(f"{world.url}/plain/m.gguf")


@pytest.mark.parametrize(("status", "words"), [(404, "404 Not Found"), (401, "who asks"), (403, "who asks")])
def test_a_refusal_is_told_at_once(world: World, get: Get, store: Store, status: int, words: str) -> None:
    world.files, world.failures = {"m.gguf": BODY}, [status]
    with pytest.raises(SourceError, match=words):
        get(f"{world.url}/plain/m.gguf")
    assert len(world.asked) == 1
    assert not store.root.exists()


def test_another_file_of_the_same_name_is_not_taken_for_it(world: World, get: Get, store: Store) -> None:
    world.files = {"m.gguf": BODY}
    store.root.mkdir()
    (store.root / "m.gguf").write_bytes(b"GGUF another")
    with pytest.raises(SourceError, match=r"another file: .* 12 bytes, this one 25624.*--as"):
        get(f"{world.url}/plain/m.gguf")
    assert get(f"{world.url}/plain/m.gguf", "other").name == "other.gguf"


def test_a_page_in_a_models_place_is_not_kept(world: World, get: Get, store: Store) -> None:
    world.files = {"m.gguf": b"<!doctype html><title>Log in</title>"}
    with pytest.raises(SourceError, match=r"m\.gguf: what came is a web page"):
        get(f"{world.url}/plain/m.gguf")
    assert list(store.root.iterdir()) == []


def test_an_address_cannot_lead_out_of_the_folder(world: World, get: Get) -> None:
    world.files = {"a%2F..%2F..%2Fm.gguf": BODY}
    assert get(f"{world.url}/plain/a%2F..%2F..%2Fm.gguf").name == "m.gguf"


@pytest.mark.parametrize("name", ["%00m.gguf", ".m.gguf", f"{'m' * 240}.gguf"])
def test_a_file_that_cannot_be_called_so_is_refused(world: World, get: Get, store: Store, name: str) -> None:
    world.files = {name: BODY}
    with pytest.raises(SourceError, match=r"is no name for a model here: .*--as NAME"):
        get(f"{world.url}/plain/{name}")
    assert get(f"{world.url}/plain/{name}", "m").name == "m.gguf"


@pytest.mark.parametrize("url", ["https://[bad/m.gguf", "https://a b/m.gguf"])
def test_what_is_no_address_is_refused(get: Get, url: str) -> None:
    with pytest.raises(SourceError, match=r"m\.gguf: "):
        get(url)


def test_a_file_that_is_there_is_not_fetched_again(world: World, get: Get) -> None:
    world.files = {"m.gguf": BODY}
    get(f"{world.url}/plain/m.gguf")
    world.asked.clear()
    world.cuts = [0]
    get(f"{world.url}/plain/m.gguf")
    assert len(world.sent()) == 1
