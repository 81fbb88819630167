"""Servers that are not segue: what they leave out, and how they refuse."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from app.cli.remote import Remote, connected
from app.errors import InvalidRequest, Overloaded, SegueError, Unauthorized, Unavailable
from app.schemas import Completion, CompletionRequest
from tests.cli.commands import refused, run
from tests.conftest import Served

REQUEST = CompletionRequest(model="m", prompt="a", seed=0)
SPARSE: dict[str, Any] = {
    "id": "x",
    "object": "text_completion",
    "model": "m",
    "system_fingerprint": None,
    "choices": [{"index": 0, "text": "b", "finish_reason": "length", "stop_reason": None, "logprobs": None}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "prompt_tokens_details": None},
}

Answer = Callable[[httpx2.Request], httpx2.Response]


def remote(answer: Answer) -> Remote:
    """A client of a server that answers so."""
    return Remote(httpx2.AsyncClient(transport=httpx2.MockTransport(answer), base_url="http://x/v1/"), "m")


def constantly(response: httpx2.Response) -> Answer:
    return lambda _: response


def answered(answer: Answer) -> Completion:
    return asyncio.run(remote(answer).answer(REQUEST))


def test_what_others_leave_out_is_no_error() -> None:
    told = answered(lambda _: httpx2.Response(200, json=SPARSE))
    assert [choice.text for choice in told.choices] == ["b"]
    assert told.usage is not None
    assert (told.system_fingerprint, told.created) == ("", 0)


def test_only_what_was_asked_is_sent() -> None:
    def check(request: httpx2.Request) -> httpx2.Response:
        assert request.content == b'{"model":"m","prompt":"a","seed":0}'
        return httpx2.Response(200, json=SPARSE)

    answered(check)


async def streamed(body: bytes) -> list[Completion]:
    return [chunk async for chunk in remote(lambda _: httpx2.Response(200, content=body)).stream(REQUEST)]


async def test_a_stream_is_its_data_lines() -> None:
    chunk = b'{"choices":[{"index":0,"text":"%b"}]}'
    body = b": hello\n\ndata: %b\r\n\r\ndata:%b\n\nevent: end\ndata: [DONE]\n\n" % (chunk % b"a", chunk % b"b")
    assert [chunk.choices[0].text for chunk in await streamed(body)] == ["a", "b"]


async def test_an_error_within_a_stream_is_raised() -> None:
    with pytest.raises(SegueError, match="broken"):
        await streamed(b'data: {"error":{"message":"broken"}}\n\n')


@pytest.mark.parametrize("body", [b"", b"<html>", b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'])
async def test_a_stream_that_does_not_say_that_it_is_done_broke_off(body: bytes) -> None:
    with pytest.raises(Unavailable, match="no stream, or broke off"):
        await streamed(body)


@pytest.mark.parametrize(
    ("status", "kind"), [(302, InvalidRequest), (400, InvalidRequest), (404, InvalidRequest), (401, Unauthorized),
                         (429, Overloaded), (500, Unavailable), (503, Unavailable)]
)  # fmt: skip
def test_a_refusal_is_told_in_the_servers_words(status: int, kind: type[SegueError]) -> None:
    for body in ({"error": {"message": "no\nsuch thing"}}, {"error": "no such thing"}):
        response = httpx2.Response(status, json=body)
        with pytest.raises(kind, match="no such thing"):
            answered(constantly(response))
    with pytest.raises(kind, match=str(status)):
        answered(lambda _: httpx2.Response(status, text="<html>"))


UNLIKE = b'{"choices":[{"text":"ab","index":0,"logprobs":{"tokens":["a","b"],"token_logprobs":[0]}}]}'


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"choices": 3}', b"{}", b'{"choices": [], "usage": 5}', UNLIKE])
def test_what_is_no_completion_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(SegueError, match="no completion"):
        answered(lambda _: httpx2.Response(200, content=body))


async def test_a_server_that_goes_away_is_told() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(Unavailable, match="broke off"):
            async with connected(url, None, "m") as source:
                await source.answer(REQUEST)


@pytest.mark.parametrize("url", ["", "x", "file:///x", "http://[::1", "http://127.0.0.1:99999"])
async def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="is no address of a server"):
        async with connected(url, None, "m") as source:
            await source.answer(REQUEST)


async def test_a_model_whose_name_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        async with connected("http://127.0.0.1:9", None, "\udcff") as source:
            await source.answer(CompletionRequest(model=source.model, prompt="a"))


def test_a_key_that_no_header_can_hold_is_refused(spm: Served) -> None:
    assert "the key cannot be sent" in refused(2, "complete", "a", "--url", spm.server.url, "--api-key", "se\ncret")


def test_a_key_of_other_bytes_is_sent_as_it_is(spm: Served) -> None:
    done = run("complete", "a", "--max-tokens", "0", "--url", spm.server.url, "--api-key", "se\udcffcret")
    assert done.exit_code == 0, done.stderr
