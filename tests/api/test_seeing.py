"""What an operator sees: the metrics and the log, against what was asked and answered.

The application runs in this process, on a toy model whose decodes a test can hold up or let fail; a client that leaves
needs a server of its own.
"""

import asyncio
import gc
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from collections.abc import Sequence as Ordered
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from app.api.drain import Drain
from app.asgi import Loaded, create_app, load
from app.engine.backend import Chunk
from app.engine.engine import Run
from app.engine.llama import LlamaBackend
from app.errors import NoRoom
from app.muster import create_house, places
from app.settings import Settings
from tests.conftest import KEYS, Served
from tests.servers import Json, envelope, payloads_of, running

pytestmark = pytest.mark.filterwarnings("ignore::litestar.exceptions.LitestarDeprecationWarning")
"""Litestar says, on making an application, what its version 3 will want marked."""

URL = "/v1/completions"
PATIENCE = 60.0
FORGED = "bob\nINFO request status=200\x1b[2K\u202e"
Decode = Callable[[], None]


LONG = "Hello you and me, " * 6
"""Enough tokens to be worth keeping."""


class Held:
    """A backend whose decodes a test holds up (`gate`) or replaces by a fault (`fault`)."""

    def __init__(self, backend: LlamaBackend) -> None:
        self._backend = backend
        self.gate = threading.Event()
        self.gate.set()
        self.is_reached = threading.Event()
        self.faults: list[Exception] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def decode(self, chunks: Ordered[Chunk]) -> NDArray[np.float32]:
        self.is_reached.set()
        assert self.gate.wait(PATIENCE)
        if self.faults:
            raise self.faults.pop()
        return self._backend.decode(chunks)


class Lines(logging.Handler):
    """The lines of the requests' log, as their fields."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[Json] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.__dict__["fields"])


@dataclass
class Site:
    """An application, a client of it, and what its operator sees."""

    http: httpx.AsyncClient
    backend: Held
    lines: list[Json] = field(default_factory=list)

    async def post(self, **fields: Any) -> httpx.Response:
        return await self.http.post(URL, json={"prompt": "Hello", "max_tokens": 3, "ignore_eos": True} | fields)

    async def metrics(self) -> dict[str, float]:
        response = await self.http.get("/metrics")
        assert response.status_code == 200
        return numbers(response.text)


def numbers(text: str) -> dict[str, float]:
    """Every sample by its name and, in braces, its labels' values."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(sample.labels[key] for key in sorted(sample.labels))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def rise(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What has changed of segue's own counts."""
    return {
        key: value - before.get(key, 0)
        for key, value in after.items()
        if key.startswith("segue_") and "_bucket" not in key and value != before.get(key, 0)
    }


@asynccontextmanager
async def site(model: Path, **settings: Any) -> AsyncIterator[Site]:
    chosen = Settings(model=str(model), threads=1, ctx_size=512, cache_size=512, **settings)
    loaded: Loaded = load(chosen)
    assert isinstance(loaded.backend, LlamaBackend)
    held = Held(loaded.backend)
    loaded = replace(loaded, backend=held)
    (place,) = places(chosen)
    house = create_house(chosen, [place], {place.id: loaded}, 1)
    app: Any = create_app(chosen, house, Drain())
    handler, logger = Lines(), logging.getLogger("segue.requests")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    house.start()
    transport = httpx.ASGITransport(app)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://site", timeout=PATIENCE) as http:
            yield Site(http, held, handler.lines)
    finally:
        held.gate.set()
        await house.close()
        logger.removeHandler(handler)


@pytest.fixture
async def here(toy_folder: Path) -> AsyncIterator[Site]:
    async with site(toy_folder / "toy-spm.gguf", parallel=4, prefix_cache=True) as here:
        yield here


async def test_what_usage_says_is_what_is_counted(here: Site) -> None:
    before = await here.metrics()
    answers = [await here.post(prompt=LONG), await here.post(prompt=[LONG, f"{LONG} and me"], n=2)]
    streamed = await here.post(stream=True, stream_options={"include_usage": True})
    usages = [answer.json()["usage"] for answer in answers]
    usages.append(json.loads(payloads_of(streamed.content)[-2])["usage"])
    rose = rise(before, await here.metrics())
    assert rose["segue_tokens_total{prompt}"] == sum(usage["prompt_tokens"] for usage in usages)
    assert rose["segue_tokens_total{completion}"] == sum(usage["completion_tokens"] for usage in usages) == 3 + 12 + 3
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert rose["segue_tokens_total{cached}"] == cached > 0
    assert rose["segue_prompts_total"] == 4
    assert 1 <= rose["segue_cache_hits_total"] <= 3
    assert rose["segue_requests_total{/v1/completions,200}"] == 3
    assert rose["segue_time_to_first_token_seconds_count"] == 3
    assert rose["segue_time_per_token_seconds_count"] == 3
    assert rose["segue_step_seconds_count{decode}"] == here_steps(rose, "plan") == here_steps(rose, "sample") > 0


def here_steps(rose: dict[str, float], part: str) -> float:
    return rose[f"segue_step_seconds_count{{{part}}}"]


async def test_cells_add_up_and_nothing_runs_when_all_is_done(here: Site) -> None:
    await here.post(prompt=LONG)
    now = await here.metrics()
    assert now["segue_cache_cells{running}"] == now["segue_sequences_running"] == now["segue_requests_waiting"] == 0
    assert now["segue_cache_cells{cached}"] > 0
    assert now["segue_cache_cells{cached}"] + now["segue_cache_cells{free}"] == 512


async def test_metrics_answer_while_a_step_goes_on_and_say_who_runs_and_waits(here: Site) -> None:
    here.backend.gate.clear()
    posts = [asyncio.ensure_future(here.post(n=4)) for _ in range(3)]
    await asyncio.to_thread(here.backend.is_reached.wait, PATIENCE)
    now = await here.metrics()  # the step cannot end before this
    assert 1 <= now["segue_sequences_running"] <= 4
    assert now["segue_requests_waiting"] == 3  # of none anything has been told
    here.backend.gate.set()
    assert [post.status_code for post in await asyncio.gather(*posts)] == [200] * 3


async def test_preemptions_are_counted(here: Site) -> None:
    before = await here.metrics()
    posts = [here.post(prompt=[k] * 4, max_tokens=250, temperature=0) for k in (300, 301, 302)]
    assert {post.status_code for post in await asyncio.gather(*posts)} == {200}
    assert rise(before, await here.metrics())["segue_preemptions_total"] > 0


async def test_every_status_is_counted_by_its_route_and_no_path_of_a_client_is_a_label(here: Site) -> None:
    before = await here.metrics()
    for path in ("/v1/nope", "/v1/chat/completions", "/" + "x" * 500, "/v1/\u2028"):
        assert (await here.http.get(path)).status_code == 404
    assert (await here.http.get("/v1/models/a/b/c")).status_code == 404
    assert (await here.post(max_tokens=-1)).status_code == 400
    assert (await here.post(model="nope")).status_code == 404
    assert (await here.http.put(URL)).status_code == 405
    assert (await here.http.post("/v1/fim/completions", content=b"{")).status_code == 400
    rose = rise(before, await here.metrics())
    assert {key: value for key, value in rose.items() if "requests_total" in key} == {
        "segue_requests_total{unknown,404}": 4,
        "segue_requests_total{unknown,405}": 1,
        "segue_requests_total{/v1/models/{model_id},404}": 1,
        "segue_requests_total{/v1/completions,400}": 1,
        "segue_requests_total{/v1/completions,404}": 1,
        "segue_requests_total{/v1/fim/completions,400}": 1,
        "segue_requests_total{/metrics,200}": 1,
    }
    assert not any(key.startswith(("segue_tokens", "segue_time")) for key in rose)


async def test_a_fault_is_counted_once_and_costs_its_request(here: Site, caplog: pytest.LogCaptureFixture) -> None:
    before = await here.metrics()
    for fault in (ValueError("a decode"), NoRoom("no cell at all")):
        here.backend.faults = [fault] * 50
        assert (await here.post()).status_code == 500
        here.backend.faults = []
    assert (await here.post()).status_code == 200
    rose = rise(before, await here.metrics())
    assert rose["segue_faults_total"] == 2
    assert rose["segue_requests_total{/v1/completions,500}"] == 2
    assert [line["outcome"] for line in here.lines] == ["failed", "failed", "done"]


async def test_a_fault_outside_of_the_engine_is_counted_too(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    before = await here.metrics()
    monkeypatch.setattr("app.completion.service.joined", fail)
    told = await here.post()
    assert told.status_code == 500
    message = envelope(told)["message"]
    assert told.headers["x-request-id"] in message
    assert "bug" not in message, "what went wrong is for the log"
    monkeypatch.undo()
    monkeypatch.setattr("app.completion.service.jobs", fail)
    assert (await here.post()).status_code == 500
    monkeypatch.undo()
    assert rise(before, await here.metrics())["segue_faults_total"] == 2
    assert [line["outcome"] for line in here.lines] == ["broken", "broken"]


async def test_a_step_that_hangs_turns_the_health_until_it_ends(toy_folder: Path) -> None:
    async with site(toy_folder / "toy-spm.gguf", step_timeout=0.5) as here:
        assert (await here.http.get("/health")).status_code == 200
        here.backend.gate.clear()
        assert envelope(await here.post())["message"].startswith("The engine is stuck")
        ill = await here.http.get("/health")
        assert ill.status_code == 503
        assert envelope(ill)["type"] == "server_error"
        assert int(ill.headers["retry-after"]) >= 1
        here.backend.gate.set()
        while (await here.http.get("/health")).status_code == 503:
            pass
        assert (await here.post()).status_code == 200


async def test_an_engine_that_has_died_turns_the_health_and_is_a_fault(
    here: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: object) -> None:
        raise RuntimeError("a bug")

    before = await here.metrics()
    monkeypatch.setattr("app.engine.batcher.Batcher.step", die)
    for _ in range(2):
        assert (await here.post()).status_code == 503
    ill = await here.http.get("/health")
    assert ill.status_code == 503
    assert envelope(ill)["type"] == "server_error"
    assert rise(before, await here.metrics())["segue_faults_total"] == 1


async def test_a_line_says_who_asked_for_what_and_what_it_cost(here: Site) -> None:
    response = await here.http.post(
        URL, json={"prompt": "Hello", "max_tokens": 3, "ignore_eos": True, "n": 2, "user": "ann"},
        headers={"x-request-id": "my-id"},
    )  # fmt: skip
    (line,) = here.lines
    assert line.pop("seconds") >= line.pop("first_token") >= line.pop("waited") >= 0
    assert line.pop("per_token") >= 0
    answer = response.json()
    assert line == {
        "request_id": "my-id", "method": "POST", "path": URL, "status": 200, "outcome": "done", "param": None,
        "code": None, "id": answer["id"], "model": "toy-spm", "user": "ann",
        "prompt_tokens": answer["usage"]["prompt_tokens"], "cached_tokens": 0, "completion_tokens": 6,
        "finish_reasons": {"length": 2},
    }  # fmt: skip


async def test_a_refused_request_has_its_line_with_what_was_wrong(here: Site) -> None:
    assert (await here.post(max_tokens=600, user="ann")).status_code == 400
    assert (await here.http.get("/v1/nope?key=sk-secret")).status_code == 404
    long, unknown = here.lines
    assert (long["status"], long["outcome"], long["user"]) == (400, "refused", "ann")
    assert (long["param"], long["code"]) == ("max_tokens", "context_length_exceeded")
    assert (unknown["status"], unknown["code"], unknown["path"]) == (404, "unknown_url", "/v1/nope")
    assert "sk-secret" not in str(here.lines)


async def test_what_only_looks_has_no_line(here: Site) -> None:
    for path in ("/health", "/metrics", "/v1/models", "/docs"):
        assert (await here.http.get(path)).status_code == 200
    assert here.lines == []


async def test_a_clients_words_are_bounded(here: Site) -> None:
    assert (await here.post(user="u" * 5000)).status_code == 200
    assert (await here.post(model="m" * 5000)).status_code == 404
    assert (await here.http.get("/" + "p" * 5000)).status_code == 404
    assert all(len(str(line)) < 1000 for line in here.lines)


async def test_editors_doors_have_their_lines_and_counts(toy_folder: Path) -> None:
    async with site(toy_folder / "toy-bpe.gguf") as here:
        before = await here.metrics()
        fim = {"prompt": "a", "suffix": "b", "max_tokens": 3}
        infill = {"input_prefix": "a", "input_suffix": "b", "n_predict": 3}
        for stream in (False, True):
            assert (await here.http.post("/v1/fim/completions", json=fim | {"stream": stream})).status_code == 200
            assert (await here.http.post("/infill", json=infill | {"stream": stream})).status_code == 200
        rose = rise(before, await here.metrics())
        assert rose["segue_requests_total{/v1/fim/completions,200}"] == 2
        assert rose["segue_requests_total{/infill,200}"] == 2
        assert rose["segue_prompts_total"] == 4
    assert [(line["outcome"], line["path"]) for line in here.lines] == [
        ("done", "/v1/fim/completions"), ("done", "/infill")
    ] * 2  # fmt: skip
    assert all(line["completion_tokens"] >= 1 for line in here.lines)


async def test_a_search_is_counted_as_its_usage_says(toy_folder: Path) -> None:
    async with site(toy_folder / "toy-spm.gguf", insertion="search") as here:
        before = await here.metrics()
        usage = (await here.post(suffix="you")).json()["usage"]
        rose = rise(before, await here.metrics())
    assert rose["segue_tokens_total{prompt}"] == usage["prompt_tokens"]
    assert rose["segue_tokens_total{completion}"] == usage["completion_tokens"]
    assert "segue_time_per_token_seconds_count" not in rose, "its text comes at once"


async def test_prompts_and_completions_are_logged_only_if_asked_for(here: Site, toy_folder: Path) -> None:
    await here.post(prompt="my secret")
    await here.post(prompt="my secret", max_tokens=-1)
    await here.post(prompt={"my secret": 1})
    assert "secret" not in str(here.lines)
    async with site(toy_folder / "toy-spm.gguf", log_prompts=True) as there:
        answer = (await there.post(prompt="my secret", n=2, echo=True)).json()
    assert there.lines[0]["prompts"] == ["my secret"]
    texts = [choice["text"].removeprefix("my secret") for choice in answer["choices"]]
    assert there.lines[0]["completions"] == texts


async def test_a_request_that_takes_too_long_is_cancelled_and_told_so(toy_folder: Path) -> None:
    async with site(toy_folder / "toy-spm.gguf", request_timeout=0.05, insertion="search") as here:
        before = await here.metrics()
        here.backend.gate.clear()  # nothing ends before its time is over
        for fields in ({}, {"suffix": "you"}):
            plain = await here.post(**fields)
            assert plain.status_code == 503
            error = envelope(plain)
            assert (error["type"], error["code"]) == ("server_error", "timeout")
            assert "--request-timeout" in error["message"]
            stream = await here.post(stream=True, **fields)
            assert json.loads(payloads_of(stream.content)[-1])["error"] == error
        here.backend.gate.set()
        rose = rise(before, await here.metrics())
        assert rose["segue_timeouts_total"] == 4
        assert "segue_disconnects_total" not in rose
        assert "segue_faults_total" not in rose
    assert [line["outcome"] for line in here.lines] == ["expired"] * 4
    assert [line["status"] for line in here.lines] == [503, 200] * 2
    assert here.lines[0]["code"] == "timeout"


async def test_nothing_of_a_request_in_time_is_kept_until_its_time_would_be_over(toy_folder: Path) -> None:
    async with site(toy_folder / "toy-spm.gguf", request_timeout=PATIENCE) as here:
        before = n_runs()
        for _ in range(5):
            assert (await here.post()).status_code == 200
            assert (await here.post(stream=True)).content.endswith(b"[DONE]\n\n")
        assert n_runs() - before <= 2, "the engine's thread may still hold the last"


def n_runs() -> int:
    gc.collect()
    return sum(isinstance(found, Run) for found in gc.get_objects())


async def test_openmetrics_for_who_asks_for_it(here: Site) -> None:
    plain = await here.http.get("/metrics")
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    accept = {"accept": "application/openmetrics-text; version=1.0.0"}
    open_metrics = await here.http.get("/metrics", headers=accept)
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert open_metrics.text.endswith("# EOF\n")


def test_the_metrics_are_behind_the_key(guarded: Served) -> None:
    refused = guarded.api.http.get("/metrics", headers={"authorization": "Bearer wrong"})
    assert envelope(refused)["code"] == "invalid_api_key"
    assert numbers(guarded.api.http.get("/metrics").text)["segue_requests_total{/metrics,401}"] >= 1


@pytest.fixture(scope="module")
def jsonned(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Path]]:
    """A server that logs objects, and its log."""
    log = tmp_path_factory.mktemp("jsonned") / "log"
    flags = ("--model", str(toy_folder / "toy-spm.gguf"), "--threads", "1", "--log-json", "--api-key", KEYS[0])
    with running(log, *flags) as server, httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        client.headers["authorization"] = f"Bearer {KEYS[0]}"
        yield client, log


def test_every_line_is_an_object_and_none_is_forged(jsonned: tuple[httpx.Client, Path]) -> None:
    client, log = jsonned
    request = {"prompt": "Hello", "max_tokens": 2, "user": FORGED}
    assert client.post(URL, json=request).status_code == 200
    assert client.post(URL, json=request | {"model": FORGED}).status_code == 404
    assert client.get("/v1/models", headers={"authorization": "Bearer sk-wrong"}).status_code == 401
    with socket.create_connection((client.base_url.host, client.base_url.port or 80)) as raw:
        raw.sendall(b"no request\r\n\r\n")
        assert b"400" in raw.recv(1000)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert lines[0]["message"] == "serving"
    assert any(line["logger"] == "uvicorn.error" for line in lines)
    served, missing, unknown = [line for line in lines if line["logger"] == "segue.requests"][-3:]
    assert (served["status"], served["user"], served["outcome"]) == (200, FORGED, "done")
    assert (missing["status"], missing["model"]) == (404, FORGED)
    assert (unknown["status"], unknown["code"]) == (401, "invalid_api_key")
    assert KEYS[0] not in log.read_text()
    assert "sk-wrong" not in log.read_text()


def test_a_client_that_leaves_is_counted_and_has_its_line(jsonned: tuple[httpx.Client, Path]) -> None:
    client, log = jsonned
    endless = {"prompt": "a", "max_tokens": 8000, "ignore_eos": True, "user": "leaver"}
    with client.stream("POST", URL, json=endless | {"stream": True}) as response:
        assert next(response.iter_lines())
    with pytest.raises(httpx.ReadTimeout):
        client.post(URL, json=endless, timeout=0.5)
    while True:  # each try is a request: the server gets on between them; CI's time is the limit
        now = numbers(client.get("/metrics").text)
        if now["segue_disconnects_total"] == 2 and now["segue_sequences_running"] == 0:
            break
    assert now["segue_cache_cells{running}"] == now["segue_cache_cells{cached}"] == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    left = [line for line in lines if line.get("user") == "leaver"]
    assert [(line["status"], line["outcome"]) for line in left] == [(200, "left"), (499, "left")]


def test_a_person_reads_one_line_a_request(spm: Served) -> None:
    spm.api.complete(prompt="Hello", max_tokens=1, user=FORGED)
    last = spm.server.said.splitlines()[-1]
    assert r"status=200 outcome=done id=cmpl-" in last
    assert r'user="bob\nINFO request status=200\u001b[2K\u202e"' in last
