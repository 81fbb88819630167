"""A client that goes away takes its work with it.

The server runs one sequence at a time, and what is left behind would keep it busy for minutes: a request that is
answered after it proves that it is gone. PATIENCE is far more than that request needs, and far less than the rest
of the work that was left: that is four minutes at the least, measured on two shared cores.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.servers import Json, Server, envelope, events, running

URL = "/v1/completions"
PATIENCE = 45.0
LONG: Json = {"prompt": "a", "max_tokens": 8000, "ignore_eos": True}
"""About eight seconds of work, where nothing else runs."""


@pytest.fixture(scope="module")
def server(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ("--parallel", "1", "--threads", "1", "--batch-size", "16", "--model", str(toy_folder / "toy-spm.gguf"))
    with running(tmp_path_factory.mktemp("single") / "log", *flags) as server:
        yield server


@asynccontextmanager
async def client(server: Server, patience: float = PATIENCE) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(base_url=server.url, timeout=patience, limits=limits) as client:
        yield client


async def follow_up(server: Server) -> None:
    """Served within PATIENCE: the one sequence that may run is free."""
    async with client(server) as http:
        response = await http.post(URL, json={"prompt": "a", "max_tokens": 5, "temperature": 0})
        assert response.status_code == 200
        assert (await http.get("/health")).status_code == 200


async def leave_streams(server: Server, requests: list[Json]) -> None:
    """Open all of them, leave each when its answer has begun and one of them has spoken."""
    async with client(server) as http:
        responses = [
            await http.send(http.build_request("POST", URL, json=request | {"stream": True}), stream=True)
            for request in requests
        ]
        assert {response.status_code for response in responses} == {200}
        assert await anext(responses[0].aiter_lines())
        for response in responses:
            await response.aclose()


async def leave_plain(server: Server, requests: list[Json]) -> None:
    """Ask all of them at once, and give up: that is what a client's timeout does."""

    async def give_up(http: httpx.AsyncClient, request: Json) -> None:
        with pytest.raises(httpx.ReadTimeout):
            await http.post(URL, json=request)

    async with client(server, patience=1.0) as http:
        await asyncio.gather(*(give_up(http, request) for request in requests))


LEFT: dict[str, list[Json]] = {
    "one choice, thirty times": [LONG] * 30,
    "n 4, ten times": [LONG | {"n": 4}] * 10,
    "n 128": [LONG | {"n": 128}],
    "best_of 20 with logprobs and stops, twice": [LONG | {"best_of": 20, "n": 20, "logprobs": 5, "stop": ["\x00"]}] * 2,
    "a list of prompts": [LONG | {"prompt": ["a", "b", "c"] * 20}],
    "prompts of 4,000 tokens": [LONG | {"prompt": [[300 + i % 50] * 4000 for i in range(100)], "max_tokens": 4000}],
    "scored prompts of 4,000 tokens": [
        {"prompt": [[300 + i % 50] * 4000 for i in range(150)], "echo": True, "logprobs": 1, "max_tokens": 0}
    ],
}


@pytest.mark.parametrize("name", [name for name in LEFT if not name.startswith("scored")])
async def test_a_stream_that_is_left_ends(server: Server, name: str) -> None:
    await leave_streams(server, LEFT[name])
    await follow_up(server)


@pytest.mark.parametrize("name", LEFT)
async def test_a_plain_request_that_is_left_ends(server: Server, name: str) -> None:
    await leave_plain(server, LEFT[name])
    await follow_up(server)


async def test_a_stream_left_before_its_first_event_ends(server: Server) -> None:
    async with client(server) as http:
        for _ in range(30):
            async with http.stream("POST", URL, json=LONG | {"stream": True}) as response:
                assert response.status_code == 200
    await follow_up(server)


async def test_ten_streams_of_which_three_are_left_do_not_stop_the_eleventh(server: Server) -> None:
    async with client(server) as http:
        for k in range(11):
            request: dict[str, Any] = LONG | {"stream": True, "max_tokens": 8000 if k in {2, 5, 6} else 20}
            async with http.stream("POST", URL, content=json.dumps(request)) as response:
                if k in {2, 5, 6}:
                    assert await anext(response.aiter_lines())
                else:
                    assert events(await response.aread())


async def test_a_full_line_is_429_and_moves_on_when_somebody_leaves(toy_folder: Path, tmp_path: Path) -> None:
    flags = ("--parallel", "1", "--max-waiting", "2", "--threads", "1", "--model", str(toy_folder / "toy-bpe.gguf"))
    with running(tmp_path / "log", *flags) as server:
        async with client(server) as http:
            request = http.build_request("POST", URL, json=LONG | {"n": 128, "stream": True})
            running_one = await http.send(request, stream=True)
            lines = running_one.aiter_lines()  # kept: a generator that is dropped closes its response
            assert await anext(lines)
            waiting = [
                await http.send(http.build_request("POST", URL, json=LONG | {"stream": True}), stream=True)
                for _ in range(2)
            ]
            for stream in (False, True):
                refused = await http.post(URL, json={"prompt": "a", "stream": stream})
                assert refused.status_code == 429
                assert int(refused.headers["retry-after"]) >= 1
                error = envelope(refused)
                assert (error["type"], error["code"]) == ("rate_limit_error", "server_overloaded")
            assert (await http.get("/health")).status_code == 200
            for response in (*waiting, running_one):
                await response.aclose()
        await follow_up(server)
