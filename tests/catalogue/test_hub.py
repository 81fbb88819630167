"""Models of the hub: which files, and what the hub says no to."""

from pathlib import Path

import pytest

from app.catalogue.store import Store
from app.errors import SettingsError, SourceError
from tests.catalogue.conftest import Get
from tests.catalogue.web_server import COMMIT, REPO, TOKEN, World

SOURCE = f"hf:{REPO}"
BODY = b"GGUF" + bytes(range(256)) * 100


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_quantisation_is_fetched_and_nothing_else(world: World, get: Get) -> None:
    world.files = {"README.md": b"", "m-Q4_K_M.gguf": BODY, "m-Q8_0.gguf": b"GGUF other", "mmproj-m-Q8_0.gguf": b"GGUF"}
    path = get(f"{SOURCE}:q8_0")
    assert path.name == "m-Q8_0.gguf"
    assert path.read_bytes() == b"GGUF other"
    assert names(path.parent) == ["m-Q8_0.gguf"]


def test_without_a_quantisation_it_is_q4_k_m_or_the_only_model(world: World, get: Get) -> None:
    world.files = {"m-Q8_0.gguf": BODY}
    assert get(SOURCE).name == "m-Q8_0.gguf"
    world.files = {"m-Q8_0.gguf": BODY, "m-Q4_K_M.gguf": BODY, "m-Q6_K.gguf": BODY}
    assert get(SOURCE).name == "m-Q4_K_M.gguf"


def test_an_unknown_quantisation_lists_those_there_are(world: World, get: Get) -> None:
    world.files = {"a/m-Q8_0.gguf": BODY, "m-IQ2_XXS.gguf": BODY, "m-BF16-00001-of-00002.gguf": BODY}
    with pytest.raises(SourceError, match=r"there is no Q5_K_M; .*: BF16, IQ2_XXS, Q8_0\."):
        get(f"{SOURCE}:Q5_K_M")
    with pytest.raises(SourceError, match=r"several models; .*: BF16, IQ2_XXS, Q8_0\."):
        get(SOURCE)


def test_what_fits_twice_is_named_by_its_file(world: World, get: Get) -> None:
    world.files = {"m-Q4_K_M.gguf": BODY, "m-it-Q4_K_M.gguf": BODY}
    with pytest.raises(SourceError, match=r"Q4_K_M is several: .*: m-Q4_K_M, m-it-Q4_K_M\."):
        get(f"{SOURCE}:Q4_K_M")
    assert get(f"{SOURCE}:m-it-Q4_K_M").name == "m-it-Q4_K_M.gguf"


def test_a_repository_without_gguf_says_so(world: World, get: Get) -> None:
    world.files = {"model.safetensors": BODY}
    with pytest.raises(SourceError, match="no GGUF model"):
        get(SOURCE)


def test_all_parts_of_a_split_model_are_fetched_into_one_folder(world: World, get: Get) -> None:
    parts = {f"Q8_0/m-Q8_0-0000{n}-of-00003.gguf": BODY + bytes([n]) for n in (1, 2, 3)}
    world.files = {**parts, "m-Q2_K.gguf": BODY}
    first = get(f"{SOURCE}:Q8_0")
    assert first.name == "m-Q8_0-00001-of-00003.gguf"
    assert {f"Q8_0/{path.name}": path.read_bytes() for path in first.parent.iterdir()} == parts


def test_a_split_model_of_which_a_part_is_missing_is_refused(world: World, get: Get, store: Store) -> None:
    world.files = {"m-Q8_0-00001-of-00002.gguf": BODY}
    with pytest.raises(SourceError, match=r"missing there: m-Q8_0-00002-of-00002\.gguf"):
        get(SOURCE)
    assert names(store.root) == []


def test_a_name_for_a_source_is_that_of_every_part(world: World, get: Get) -> None:
    world.files = {f"m-Q8_0-0000{n}-of-00002.gguf": BODY for n in (1, 2)}
    first = get(SOURCE, "mine")
    assert names(first.parent) == ["mine-00001-of-00002.gguf", "mine-00002-of-00002.gguf"]
    assert first.name == "mine-00001-of-00002.gguf"


def test_a_cut_connection_is_gone_on_with_where_it_was(world: World, get: Get) -> None:
    world.files, world.cuts = {"m.gguf": BODY}, [1000, 500]
    assert get(SOURCE).read_bytes() == BODY
    assert world.sent() == [None, "bytes=1000-", "bytes=1500-"]


def test_a_download_that_was_given_up_is_gone_on_with_by_the_next(
    world: World, get: Get, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.catalogue.web.PAUSES", ())
    world.files, world.cuts = {"m.gguf": BODY}, [1000, 0]
    with pytest.raises(SourceError, match="Try again later"):
        get(SOURCE)
    (partial,) = store.root.iterdir()
    assert partial.name.startswith(".")
    assert partial.stat().st_size == 1000
    world.asked.clear()
    assert get(SOURCE).read_bytes() == BODY
    assert world.sent() == ["bytes=1000-"]
    assert names(store.root) == ["m.gguf"]


def test_a_partial_file_of_another_version_is_not_gone_on_with(
    world: World, get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.catalogue.web.PAUSES", ())
    world.files, world.cuts = {"m.gguf": BODY}, [1000, 0]
    with pytest.raises(SourceError):
        get(SOURCE)
    world.files = {"m.gguf": BODY[::-1]}
    assert get(SOURCE).read_bytes() == BODY[::-1]


def test_a_wrong_checksum_is_refused_and_leaves_nothing(world: World, get: Get, store: Store) -> None:
    world.files, world.checksums = {"m.gguf": BODY}, {"m.gguf": "0" * 64}
    with pytest.raises(SourceError, match=r"the checksum is [0-9a-f]{64}, and it should be 0000"):
        get(SOURCE)
    assert names(store.root) == []


@pytest.mark.parametrize(("state", "told"), [("is_gated", "gated: "), ("is_private", "not there, or is private: ")])
def test_a_repository_that_is_not_for_all_says_to_set_a_token(
    world: World, get: Get, monkeypatch: pytest.MonkeyPatch, state: str, told: str
) -> None:
    world.files = {"m.gguf": BODY}
    setattr(world, state, True)
    with pytest.raises(SourceError, match=f"{told}.*HF_TOKEN"):
        get(SOURCE)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert get(SOURCE).read_bytes() == BODY


def test_a_token_goes_to_the_hub_alone(world: World, get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    world.files = {"m.gguf": BODY}
    get(SOURCE)
    told = {asked.host.partition(":")[0]: asked.authorization for asked in world.asked}
    assert told == {"127.0.0.1": f"Bearer {TOKEN}", "localhost": None}


def test_a_revision_is_fetched_at_its_commit(world: World, get: Get) -> None:
    world.files = {"m.gguf": BODY}
    get(f"{SOURCE}@main:m")
    assert any(f"/resolve/{COMMIT}/" in asked.path for asked in world.asked)
    with pytest.raises(SourceError, match="no revision v9"):
        get(f"{SOURCE}@v9")


@pytest.mark.parametrize("source", ["hf:", "hf:one", "hf:a/b/c", "hf:a/b:", "hf:a/b:c:d", "hf:a/b@\udcff"])
def test_what_is_no_repository_is_refused(world: World, get: Get, source: str) -> None:
    with pytest.raises(SettingsError, match="hf:"):
        get(source)


def test_what_no_repository_is_called_is_refused(world: World, get: Get) -> None:
    with pytest.raises(SourceError, match=r"hf:\.\./\.\."):
        get("hf:../..:x")


def test_a_hub_that_is_not_there_is_named(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(SourceError, match=f"{SOURCE}: the hub cannot be reached"):
        get(SOURCE)


@pytest.mark.parametrize("body", ["<html>Log in</html>", "[]", "null", "5", '{"siblings": 5}'])
def test_what_is_no_hub_is_said_to_be_none(world: World, get: Get, body: str) -> None:
    world.page = body.encode()
    with pytest.raises(SourceError, match="what answers there is no hub"):
        get(SOURCE)
