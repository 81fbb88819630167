"""segue on a Ray cluster of this machine, as its clients see it: two replicas of a toy model behind Ray's proxy.

Each answer names the process that gave it, so that a test knows whom it kills and who is left. Skipped where Ray is
not installed; scripts/ray-test installs it, apart.
"""

import asyncio
import importlib.util
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from app.settings import ModelSettings, Settings
from tests.conftest import Served
from tests.servers import Api, Json, Server, envelope, running, strict_json, without_identity

if not importlib.util.find_spec("ray"):
    pytest.skip("Ray is not installed (scripts/ray-test)", allow_module_level=True)

URL = "/v1/completions"
PATIENCE = 90.0
"""For what Ray does in its own time, which is seconds."""
LONG: Json = {"prompt": "a", "max_tokens": 3000, "ignore_eos": True, "stream": True}
"""Seconds of work."""


def replicas(folder: Path, log: Path, *flags: str) -> Iterator[Server]:
    flags = ("--model", str(folder / "toy-spm.gguf"), "--threads", "1", *flags)
    with running(log, *flags, command="ray") as server:
        yield server


@pytest.fixture(scope="module")
def pair(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two replicas."""
    yield from replicas(toy_folder, tmp_path_factory.mktemp("ray") / "log", "--replicas", "2")


@asynccontextmanager
async def client(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, limits=limits) as http:
        yield http


def replica_of(response: httpx.Response) -> int:
    """The process that answered."""
    return int(response.headers["x-segue-replica"].rpartition(":")[2])


async def asked(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    response = await http.post(URL, json={"max_tokens": 4, **fields})
    assert response.status_code == 200, response.text
    return response


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again whether it is so. Fails after PATIENCE."""
    deadline = time.monotonic() + PATIENCE
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def all_replicas(http: httpx.AsyncClient, n: int) -> set[int]:
    """The processes that answer, when so many do."""
    found: set[int] = set()

    async def are_found() -> bool:
        found.add(replica_of(await asked(http, prompt="a")))
        return len(found) == n

    await until(are_found)
    return found


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Ray's own, when it is imported
def test_a_replica_of_several_models_has_room_and_threads_for_each() -> None:
    from app.ray import Scale, application

    models = (ModelSettings(model="a", parallel=4), ModelSettings(model="b", parallel=8, threads=3))
    deployment = application(Settings(models=models, max_waiting=1), Scale(n_cpus=2))._bound_deployment
    (own,) = deployment.init_args
    assert [each.threads for each in own.each()] == [2, 3]
    assert deployment.max_ongoing_requests == own.max_waiting == 2 * (4 + 8)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "Hello", "max_tokens": 30, "temperature": 0},
        {"prompt": ["Hello", " and"], "max_tokens": 20, "seed": 7, "n": 2},
        {"prompt": "Hello *", "max_tokens": 12, "seed": 3, "logprobs": 2, "echo": True},
    ],
)
def test_the_answers_are_a_plain_servers(pair: Server, spm: Served, fields: Json) -> None:
    api = Api(pair.url)
    wanted = spm.api.complete(**fields)["choices"]
    assert api.complete(**fields)["choices"] == wanted
    assert without_identity(api.stream(**fields).choices) == wanted
    api.http.close()


def test_refusals_pass_with_one_id(pair: Server) -> None:
    response = httpx.post(pair.url + URL, json={"prompt": 3}, headers={"x-request-id": "mine"})
    assert response.status_code == 400
    assert envelope(response)["param"] == "prompt"
    assert response.headers.get_list("x-request-id") == ["mine"]


async def test_requests_that_begin_alike_find_what_was_read(pair: Server) -> None:
    """By chance all ten would do so once in a thousand times."""
    async with client(pair) as http:
        found = set()
        for number in range(10):
            text = f"{number} " + "Hello, my name is and the sea. " * 10
            first = replica_of(await asked(http, prompt=text))
            again = await asked(http, prompt=text + "so")
            assert replica_of(again) == first
            assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 100
            found.add(first)
        assert len(found) == 2


class Reader:
    """A stream that is read to whatever end it has."""

    def __init__(self, response: httpx.Response) -> None:
        self.replica = replica_of(response)
        self._response = response
        self._lines = response.aiter_lines()
        self.payloads: list[str] = []

    async def read(self) -> bool:
        """Take one event. False at the end."""
        async for line in self._lines:
            if line:
                self.payloads.append(line.removeprefix("data: "))
                return True
        return False

    async def finish(self) -> None:
        while await self.read():
            pass
        await self._response.aclose()


async def opened(http: httpx.AsyncClient) -> Reader:
    """A long stream that has begun."""
    response = await http.send(http.build_request("POST", URL, json=LONG), stream=True)
    assert response.status_code == 200
    reader = Reader(response)
    assert await reader.read()
    return reader


async def test_a_killed_replica_costs_its_own_requests_alone_and_comes_back(pair: Server) -> None:
    async with client(pair) as http:
        before = await all_replicas(http, 2)
        readers: list[Reader] = []
        while {reader.replica for reader in readers} != before or len(readers) < 6:
            readers.append(await opened(http))
        victim = readers[0].replica
        os.kill(victim, signal.SIGKILL)
        await asyncio.gather(*(reader.finish() for reader in readers))

        for reader in readers:
            if reader.replica == victim:  # it had spoken, as it went, and was told what became of it
                assert strict_json(reader.payloads[0])["choices"]
                assert strict_json(reader.payloads[-1])["error"]["type"] == "server_error"
            else:
                assert reader.payloads[-1] == "[DONE]"
                assert json.loads(reader.payloads[-2])["choices"][0]["finish_reason"] == "length"

        after = await all_replicas(http, 2)
        assert victim not in after
        assert len(before & after) == 1


@pytest.fixture
def elastic(toy_folder: Path, tmp_path: Path) -> Iterator[Server]:
    """One replica or two, by the load."""
    flags = ("--max-replicas", "2", "--parallel", "2", "--upscale-delay", "0.5", "--downscale-delay", "2")
    yield from replicas(toy_folder, tmp_path / "log", *flags)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


async def test_scaling_up_and_down_loses_no_request(elastic: Server) -> None:
    async with client(elastic) as http:
        found: set[int] = set()

        async def work(n: int, is_over: Callable[[], bool]) -> None:
            """So many clients at once, each with the next request as soon as it has an answer."""

            async def one() -> None:
                while not is_over():
                    response = await asked(http, prompt="a", max_tokens=200, ignore_eos=True)
                    assert response.json()["usage"]["completion_tokens"] == 200
                    found.add(replica_of(response))

            await asyncio.wait_for(asyncio.gather(*(one() for _ in range(n))), PATIENCE)

        (first,) = await all_replicas(http, 1)
        await work(12, lambda: len(found | {first}) == 2)
        await work(1, lambda: sum(map(is_alive, found | {first})) == 1)
