"""A request's answer does not depend on what else is running, and no stream waits for another."""

import asyncio
import json
from typing import Any

import httpx

from tests.conftest import Served
from tests.servers import events, strict_json, without_identity

HELLO = "Hello, my name is"
KINDS: list[dict[str, Any]] = [
    {"prompt": HELLO, "seed": 1, "max_tokens": 60},
    {"prompt": HELLO, "temperature": 0, "max_tokens": 60, "logprobs": 3},
    {"prompt": "my name is " * 120, "seed": 2, "max_tokens": 20, "echo": True, "logprobs": 2},
    {"prompt": "*&^|$", "seed": 3, "n": 4, "max_tokens": 30, "logprobs": 1, "ignore_eos": True},
    {"prompt": ["a", "b", "a"], "seed": 4, "n": 2, "best_of": 5, "max_tokens": 10, "echo": True},
    {"prompt": "a", "seed": 5, "max_tokens": 40, "stream": True, "logprobs": 2, "stop": ["e", "na"]},
    {"prompt": "", "seed": 6, "n": 3, "max_tokens": 25, "stream": True, "echo": True},
    {"prompt": [5, 300, 7], "seed": 7, "max_tokens": 0, "echo": True, "logprobs": 5},
    {"prompt": "the", "temperature": 0, "frequency_penalty": 1.5, "repetition_penalty": 1.2, "max_tokens": 80},
    {"prompt": "x" * 400, "seed": 8, "top_p": 0.9, "temperature": 1.5, "max_tokens": 50},
    {"prompt": "of", "seed": 9, "top_k": 20, "min_p": 0.01, "max_tokens": 50, "return_token_ids": True},
    {"prompt": "!", "seed": 10, "logit_bias": {"2": -3, "300": 4}, "max_tokens": 30, "min_tokens": 8},
]


def answer(request: dict[str, Any], response: httpx.Response) -> Any:
    """Everything of an answer but who it was and what came from the cache; the chunks of a stream by choice, since
    choices interleave freely."""
    assert response.status_code == 200, response.text
    if not request.get("stream"):
        body = strict_json(response.content)
        del body["usage"]["prompt_tokens_details"]
        return without_identity([body])
    chunks = without_identity([strict_json(payload) for payload in events(response.content)[:-1]])
    return sorted(chunks, key=lambda chunk: chunk["choices"][0]["index"])


async def test_an_answer_is_the_same_alone_and_among_fifteen_others(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.api.url, timeout=120) as client:

        async def ask(request: dict[str, Any]) -> Any:
            return answer(request, await client.post("/v1/completions", content=json.dumps(request)))

        alone = [await ask(request) for request in KINDS]
        for turn in range(3):
            crowd = (KINDS[turn:] + KINDS + KINDS)[:16]
            together = await asyncio.gather(*(ask(request) for request in crowd))
            for request, got in zip(crowd, together, strict=True):
                assert got == alone[KINDS.index(request)], request


async def test_equal_requests_at_once_have_equal_answers(served: Served) -> None:
    request: dict[str, Any] = {"prompt": "my name is " * 40, "seed": 11, "max_tokens": 40, "logprobs": 2}
    async with httpx.AsyncClient(base_url=served.api.url, timeout=120) as client:
        responses = await asyncio.gather(
            *(client.post("/v1/completions", content=json.dumps(request)) for _ in range(16))
        )
    answers = [answer(request, response) for response in responses]
    assert answers == [answers[0]] * 16


async def test_more_requests_than_may_run_are_all_answered(served: Served) -> None:
    async with httpx.AsyncClient(
        base_url=served.api.url, timeout=120, limits=httpx.Limits(max_connections=100)
    ) as client:
        request: dict[str, Any] = {"prompt": "a", "max_tokens": 30, "n": 2, "seed": 1}
        responses = await asyncio.gather(
            *(client.post("/v1/completions", content=json.dumps(request)) for _ in range(80))
        )
    answers = [answer(request, response) for response in responses]
    assert answers == [answers[0]] * 80


async def test_sixteen_streams_advance_together(served: Served) -> None:
    """Every one has had a chunk before any has ended."""
    order: list[tuple[int, str]] = []

    async def follow(client: httpx.AsyncClient, k: int) -> None:
        request = {"prompt": "a", "seed": k, "max_tokens": 400, "stream": True, "ignore_eos": True}
        async with client.stream("POST", "/v1/completions", content=json.dumps(request)) as response:
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    order.append((k, "end"))
                elif line:
                    order.append((k, "chunk"))

    async with httpx.AsyncClient(base_url=served.api.url, timeout=120) as client:
        await asyncio.gather(*(follow(client, k) for k in range(16)))
    firsts = [order.index((k, "chunk")) for k in range(16)]
    ends = [order.index((k, "end")) for k in range(16)]
    assert max(firsts) < min(ends)
