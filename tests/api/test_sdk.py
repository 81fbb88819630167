"""OpenAI's own client, sync and async, plain and streamed, and the errors that it raises."""

import asyncio
from collections.abc import Iterator

import openai
import pytest

from tests.conftest import Served

HELLO = "Hello, my name is"


@pytest.fixture(scope="module")
def client(spm: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{spm.api.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_a_plain_answer(spm: Served, client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="toy-spm", prompt=HELLO, max_tokens=5, temperature=0, logprobs=2, echo=True
    )
    read = spm.oracle.read(HELLO)
    ids = spm.oracle.greedy(read, 5)
    (choice,) = answer.choices
    assert choice.text == HELLO + spm.oracle.complete(ids, 5).text
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert "".join(choice.logprobs.tokens) == choice.text
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(read.ids), 5)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.object == "text_completion"
    assert answer.system_fingerprint
    assert answer._request_id


def test_a_streamed_answer(spm: Served, client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model="toy-spm", prompt=[HELLO, "a"], max_tokens=9, seed=3, stream=True, stream_options={"include_usage": True}
    )
    texts, reasons = {0: "", 1: ""}, {}
    chunks = list(stream)
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        if choice.finish_reason:
            reasons[choice.index] = choice.finish_reason
        assert chunk.usage is None
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == chunks[-1].usage.prompt_tokens + chunks[-1].usage.completion_tokens
    plain = spm.api.choices(prompt=[HELLO, "a"], max_tokens=9, seed=3)
    assert list(texts.values()) == [choice["text"] for choice in plain]
    assert [reasons[index] for index in (0, 1)] == [choice["finish_reason"] for choice in plain]


def test_fields_that_the_sdk_does_not_know(spm: Served, client: openai.OpenAI) -> None:
    extra = {"top_k": 1, "return_token_ids": True, "whatever": 1}
    answer = client.completions.create(model="toy-spm", prompt="a", max_tokens=3, extra_body=extra)
    assert answer.choices[0].model_dump()["token_ids"] == spm.oracle.greedy(spm.oracle.read("a"), 3)


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["toy-spm", "other/name"]
    assert client.models.retrieve("other/name").id == "other/name"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")


def test_an_unknown_model_raises_not_found(client: openai.OpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.NotFoundError) as raised:
            client.completions.create(model="nope", prompt="a", stream=stream)
        assert raised.value.code == "model_not_found"
        assert raised.value.param == "model"
        assert raised.value.type == "invalid_request_error"
        assert raised.value.request_id
        assert "toy-spm" in raised.value.message


def test_a_bad_value_raises_bad_request(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model="toy-spm", prompt="a", temperature=3)
    assert raised.value.param == "temperature"
    assert raised.value.code is None
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model="toy-spm", prompt="a", max_tokens=100_000, stream=True)
    assert raised.value.code == "context_length_exceeded"
    assert "100000" in raised.value.message


def test_a_stream_may_be_left(client: openai.OpenAI) -> None:
    for _ in range(3):
        with client.completions.create(model="toy-spm", prompt="a", max_tokens=4000, stream=True) as stream:
            assert next(iter(stream)).choices
    assert client.completions.create(model="toy-spm", prompt="a", max_tokens=1).choices


async def test_async_plain_and_streamed_at_once(spm: Served) -> None:
    async with openai.AsyncOpenAI(base_url=f"{spm.api.url}/v1", api_key="none", max_retries=0, timeout=60) as client:

        async def streamed(seed: int) -> str:
            stream = await client.completions.create(
                model="toy-spm", prompt=HELLO, max_tokens=12, seed=seed, stream=True
            )
            return "".join([chunk.choices[0].text async for chunk in stream])

        async def plain(seed: int) -> str:
            answer = await client.completions.create(model="toy-spm", prompt=HELLO, max_tokens=12, seed=seed)
            return answer.choices[0].text

        texts = await asyncio.gather(*map(streamed, range(8)), *map(plain, range(8)))
        assert texts[:8] == texts[8:]
        assert len(set(texts)) == 8
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="nope", prompt="a")
