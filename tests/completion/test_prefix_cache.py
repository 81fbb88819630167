"""What `--prefix-cache` changes for a client: the tokens that are said to be cached, and nothing else."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Served
from tests.servers import Api, Json, running

TEXT = "Hello, my name is and the sea, Hello, my name is"


@pytest.fixture(scope="module")
def caching(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    flags = ("--model", str(toy_folder / "toy-bpe.gguf"), "--threads", "1", "--ctx-size", "512", "--prefix-cache")
    with running(tmp_path_factory.mktemp("caching") / "log", *flags) as server:
        api = Api(server.url)
        yield api
        api.http.close()


def cached(answer: Json) -> int:
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


@pytest.mark.parametrize("fields", [{"max_tokens": 6, "seed": 1}, {"max_tokens": 0, "echo": True, "logprobs": 3}])
def test_a_repeated_request_is_served_from_the_cache_and_answered_the_same(
    caching: Api, bpe: Served, fields: Json
) -> None:
    body = {"prompt": f"{TEXT} {len(fields)}", **fields}
    first, again, plain = caching.complete(**body), caching.complete(**body), bpe.api.complete(**body)
    assert cached(again) >= first["usage"]["prompt_tokens"] - 2
    assert first["choices"] == again["choices"] == plain["choices"]


def test_a_conversation_is_read_from_where_it_went_on(caching: Api) -> None:
    first = caching.complete(prompt=f"{TEXT} so", max_tokens=8, temperature=0)
    longer = caching.complete(prompt=f"{TEXT} so{first['choices'][0]['text']}!!", max_tokens=1)
    assert cached(longer) >= first["usage"]["prompt_tokens"]


def test_by_default_nothing_is_cached_from_request_to_request(bpe: Served) -> None:
    body = {"prompt": f"{TEXT} here", "max_tokens": 2}
    bpe.api.complete(**body)
    assert cached(bpe.api.complete(**body)) == 0


def test_prompts_of_one_request_that_begin_alike_are_read_once(bpe: Served) -> None:
    text = TEXT * 6
    answer = bpe.api.complete(prompt=[f"{text} {tail}" for tail in ("one", "two", "three")], max_tokens=1)
    assert cached(answer) >= answer["usage"]["prompt_tokens"] // 2
