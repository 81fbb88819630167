"""What is not read again: the tokens that are said to be cached, and that nothing else tells of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Served
from tests.servers import Api, Json, running

TEXT = "Hello, my name is and the sea, Hello, my name is"


@pytest.fixture(scope="module")
def afresh(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server that keeps nothing, and guesses from the prompt."""
    flags = ("--model", str(toy_folder / "toy-bpe.gguf"), "--threads", "1", "--ctx-size", "512")
    with running(tmp_path_factory.mktemp("afresh") / "log", *flags, "--no-prefix-cache", "--draft", "prompt") as server:
        api = Api(server.url)
        yield api
        api.http.close()


def cached(answer: Json) -> int:
    found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


@pytest.mark.parametrize("fields", [{"max_tokens": 6, "seed": 1}, {"max_tokens": 0, "echo": True, "logprobs": 3}])
def test_a_repeated_request_is_served_from_the_cache_and_answered_the_same(
    bpe: Served, afresh: Api, fields: Json
) -> None:
    body = {"prompt": f"{TEXT} {len(fields)}", **fields}
    first, again, plain = bpe.api.complete(**body), bpe.api.complete(**body), afresh.complete(**body)
    assert cached(again) >= first["usage"]["prompt_tokens"] - 2
    assert first["choices"] == again["choices"] == plain["choices"]


def test_a_conversation_is_read_from_where_it_went_on(bpe: Served) -> None:
    first = bpe.api.complete(prompt=f"{TEXT} so", max_tokens=8, temperature=0)
    longer = bpe.api.complete(prompt=f"{TEXT} so{first['choices'][0]['text']}!!", max_tokens=1)
    assert cached(longer) >= first["usage"]["prompt_tokens"]


def test_a_server_may_be_told_to_keep_nothing(afresh: Api) -> None:
    body = {"prompt": f"{TEXT} here", "max_tokens": 2}
    afresh.complete(**body)
    assert cached(afresh.complete(**body)) == 0


def test_a_request_may_ask_to_be_read_afresh(bpe: Served) -> None:
    body = {"prompt": f"{TEXT} there", "max_tokens": 2}
    bpe.api.complete(**body)
    assert cached(bpe.api.complete(**body, cache_prompt=False)) == 0
    assert cached(bpe.api.complete(**body, cache_prompt=True)) > 0


def test_a_short_prompt_is_read_again_and_so_repeats_to_the_last_digit(bpe: Served) -> None:
    body = {"prompt": "my name", "max_tokens": 2, "logprobs": 2, "seed": 4}
    assert cached(bpe.api.complete(**body)) == cached(bpe.api.complete(**body)) == 0


def test_guesses_change_nothing_but_the_time(bpe: Served, afresh: Api) -> None:
    """The one server guesses, the other does not; the text repeats itself, so that guesses are right and wrong."""
    for fields in (
        {"temperature": 0},
        {"seed": 3},
        {"seed": 4, "n": 3, "logprobs": 2},
        {"temperature": 0.3, "seed": 1},
    ):
        body = {"prompt": TEXT * 4, "max_tokens": 48, **fields}
        assert afresh.complete(**body)["choices"] == bpe.api.complete(**body)["choices"]


def test_prompts_of_one_request_that_begin_alike_are_read_once(afresh: Api) -> None:
    text = TEXT * 6
    answer = afresh.complete(prompt=[f"{text} {tail}" for tail in ("one", "two", "three")], max_tokens=1)
    assert cached(answer) >= answer["usage"]["prompt_tokens"] // 2
