"""Several models from one process: exact answers from each, and who is loaded when."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import httpx
import pytest

from tests import toys
from tests.api.test_seeing import numbers
from tests.oracle import Oracle, Tokenizer, check_logprobs
from tests.servers import Api, Json, Server, envelope, events, running
from tests.toys import Toy

PATIENCE = 60.0
URL = "/v1/completions"
SPM, BPE = "toy-spm", "toy-bpe"
LONG: Json = {"model": SPM, "prompt": "a", "max_tokens": 3000, "ignore_eos": True, "stream": True}
"""Some seconds of work."""
PROMPT = "Hello, my name is"


@dataclass(frozen=True)
class Several:
    """A server of both toys, and the right answers of each."""

    server: Server
    api: Api
    oracles: dict[str, Oracle]

    def models(self) -> dict[str, Json]:
        return {model["id"]: model for model in self.api.http.get("/v1/models").json()["data"]}

    def states(self) -> tuple[str, str]:
        models = self.models()
        return models[SPM]["state"], models[BPE]["state"]

    def until(self, is_so: Callable[[], bool]) -> None:
        """Each look is a request: the server gets on between them."""
        deadline = monotonic() + PATIENCE
        while not is_so():
            assert monotonic() < deadline, self.server.said

    def metrics(self) -> dict[str, float]:
        return numbers(self.api.http.get("/metrics").text)

    def check(self, model: str, answer: Json, prompt: str = PROMPT, n: int = 24) -> None:
        """A greedy answer with two likeliest, echoed, is the model's own, to the last entry."""
        oracle = self.oracles[model]
        read = oracle.read(prompt)
        wanted = oracle.complete(oracle.greedy(read, n), n)
        (choice,) = answer["choices"]
        assert choice["text"] == prompt + wanted.text
        check_logprobs(choice["logprobs"], oracle.entries(read, wanted, 2, echo=True))
        assert answer["model"] == model


def greedy(model: str, prompt: str = PROMPT, n: int = 24) -> Json:
    return {"model": model, "prompt": prompt, "max_tokens": n, "temperature": 0, "echo": True, "logprobs": 2}


def config(folder: Path, toy_folder: Path, top: str = "", spm: str = "", bpe: str = "") -> str:
    """A file of settings; each argument is lines of it."""
    path = folder / "segue.toml"
    tables = [f"[[models]]\nmodel = '{toy_folder / name}.gguf'\n{lines}\n" for name, lines in ((SPM, spm), (BPE, bpe))]
    path.write_text(f"threads = 1\nctx-size = 4096\n{top}\n" + "".join(tables))
    return str(path)


@contextmanager
def several(folder: Path, toy_folder: Path, top: str = "", spm: str = "", bpe: str = "") -> Iterator[Several]:
    """A server with such settings."""
    tokenizers = {name: Tokenizer(toy_folder / f"{name}.gguf") for name in (SPM, BPE)}
    kinds: dict[str, Toy] = {SPM: toys.spm(), BPE: toys.bpe()}
    with running(folder / "log", "--config", config(folder, toy_folder, top, spm, bpe)) as server:
        api = Api(server.url)
        yield Several(server, api, {name: Oracle(kinds[name], tokenizers[name]) for name in kinds})
        api.http.close()
    for tokenizer in tokenizers.values():
        tokenizer.close()


@pytest.fixture(scope="module")
def both(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    """The second is loaded when it is asked for, and reads a suffix first."""
    bpe = 'load = "first-use"\nalias = "code"\nctx-size = 256\nfim-order = "spm"'
    with several(tmp_path_factory.mktemp("both"), toy_folder, spm='alias = ["other/name"]', bpe=bpe) as both:
        yield both


def test_a_model_is_loaded_when_it_is_asked_for_and_listed_before(both: Several) -> None:
    """The first test here: nothing has asked for it."""
    before = both.models()
    assert list(before) == [SPM, "other/name", BPE, "code"]
    assert (before[SPM]["state"], before[SPM]["status"]) == ("loaded", {"value": "loaded"})
    assert (before[BPE]["state"], before[BPE]["status"]) == ("unloaded", {"value": "unloaded"})
    assert before["code"]["root"] == BPE
    assert (before[BPE]["max_model_len"], before[BPE]["meta"]) == (256, None)
    assert before[SPM]["max_model_len"] == 4096
    assert both.api.http.get("/health").status_code == 200
    assert f"{BPE}, code (loaded on first use)" in both.server.said
    both.check(BPE, both.api.complete(**greedy(BPE)))
    after = both.models()
    assert after[BPE] | {"meta": None} == before[BPE] | {"state": "loaded", "status": {"value": "loaded"}}
    assert after[BPE]["meta"]["n_vocab"] == both.oracles[BPE].toy.n_vocab
    assert after["code"] == both.api.http.get("/v1/models/code").json()


async def test_two_models_serve_at_once_with_exact_answers_from_both(both: Several) -> None:
    asked = [(model, prompt) for prompt in (PROMPT, "a", "the", "once") for model in (SPM, BPE)]
    async with httpx.AsyncClient(base_url=both.server.url, timeout=PATIENCE) as client:
        answers = await asyncio.gather(*(client.post(URL, json=greedy(model, prompt, 200)) for model, prompt in asked))
    for (model, prompt), answer in zip(asked, answers, strict=True):
        both.check(model, answer.json(), prompt, 200)
    prints = {answer.json()["system_fingerprint"] for answer in answers}
    assert len(prints) == 2


async def test_neither_waits_for_the_others_end(both: Several) -> None:
    async with (
        httpx.AsyncClient(base_url=both.server.url, timeout=PATIENCE) as client,
        client.stream("POST", URL, json=LONG) as stream,
    ):
        lines = stream.aiter_lines()
        assert await anext(lines)
        other = await client.post(URL, json=greedy(BPE, n=200))
        assert both.metrics()[f"segue_sequences_running{{{SPM}}}"] == 1, "it goes on"
        both.check(BPE, other.json(), n=200)


def test_an_unknown_model_is_told_of_all_that_are_served(both: Several) -> None:
    for path in (URL, "/v1/fim/completions", "/infill", "/tokenize"):
        response = both.api.http.post(path, json={"prompt": "a", "model": "nope", "max_tokens": 1 << 40})
        assert response.status_code == 404
        assert "Served: toy-spm, other/name, toy-bpe, code." in envelope(response)["message"]
    assert both.api.http.get("/props?model=nope").status_code == 404


def test_where_no_model_is_named_the_first_is_meant(both: Several) -> None:
    answer = both.api.complete(prompt="a", max_tokens=1)
    assert answer["model"] == SPM
    tokens = both.api.http.post("/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    assert tokens == both.oracles[SPM].read(PROMPT).ids
    assert both.api.http.get("/props").json()["model_alias"] == SPM


def test_every_route_knows_the_model_that_is_named(both: Several) -> None:
    http, oracle = both.api.http, both.oracles[BPE]
    tokens = http.post("/tokenize", json={"prompt": PROMPT, "model": "code"}).json()
    assert (tokens["tokens"], tokens["max_model_len"]) == (oracle.read(PROMPT).ids, 256)
    text = http.post("/detokenize", json={"tokens": tokens["tokens"], "model": "code"}).json()
    assert text == {"prompt": PROMPT}
    assert http.get("/tokenizer_info?model=code").json()["model_max_length"] == 256
    assert http.get("/props?model=code").json()["model_alias"] == BPE
    gap = {"model": "code", "prompt": "a", "suffix": "b", "temperature": 0, "max_tokens": 100}
    framed = both.api.complete(**gap)["choices"][0]["text"]
    assert http.post("/v1/fim/completions", json=gap).json()["choices"][0]["message"]["content"] == framed
    asked = {"model": "code", "input_prefix": "a", "input_suffix": "b", "temperature": 0, "n_predict": 100}
    assert http.post("/infill", json=asked).json()["content"] == framed
    assert envelope(http.post("/infill", json=asked | {"model": None}))["param"] == "suffix", "the first fills none"


def test_the_metrics_tell_the_models_apart(both: Several) -> None:
    both.api.complete(model=BPE, prompt="a", max_tokens=1)
    now = both.metrics()
    states = ("running", "cached", "free")
    assert sum(now[f"segue_cache_cells{{{BPE},{state}}}"] for state in states) == 8192
    assert now[f"segue_model_loaded{{{BPE}}}"] == 1
    assert now[f"segue_step_seconds_count{{{BPE},decode}}"] >= 1
    assert now["segue_faults_total"] == now[f"segue_faults_total{{{SPM}}}"] == 0, "the first: outside of the engines"


@pytest.fixture(scope="module")
def tight(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    """Room for one at a time."""
    top = 'memory-budget = 1\nload = "first-use"\nmax-waiting = 0\nparallel = 1'
    with several(tmp_path_factory.mktemp("tight"), toy_folder, top) as tight:
        yield tight


def test_where_there_is_room_for_one_the_other_leaves_and_comes_back_the_same(tight: Several) -> None:
    for model, states in ((SPM, ("loaded", "unloaded")), (BPE, ("unloaded", "loaded"))) * 2:
        answer = tight.api.complete(**greedy(model))
        tight.check(model, answer)
        assert tight.states() == states
    assert tight.api.http.get("/health").status_code == 200


def test_counts_go_on_though_a_model_has_left(tight: Several) -> None:
    key = f"segue_step_seconds_count{{{SPM},decode}}"
    counts = []
    for model in (SPM, BPE, SPM):
        tight.api.complete(**greedy(model))
        counts.append(tight.metrics()[key])
    assert counts[0] >= 24
    assert counts[1] == counts[0]
    assert counts[2] >= counts[1] + 24
    assert tight.models()[BPE]["meta"]["architecture"] == "llama", "what it was is remembered"


async def test_one_with_work_does_not_leave_and_who_waits_is_served_when_its_work_is_over(tight: Several) -> None:
    async with httpx.AsyncClient(base_url=tight.server.url, timeout=PATIENCE) as client:
        stream = await client.send(client.build_request("POST", URL, json=LONG), stream=True)
        lines = stream.aiter_lines()
        got = [await anext(lines)]
        other = asyncio.ensure_future(client.post(URL, json=greedy(BPE)))
        await asyncio.to_thread(tight.until, lambda: tight.states() == ("loaded", "loading"))
        assert tight.metrics()[f"segue_requests_waiting{{{BPE}}}"] == 1
        assert tight.api.http.get("/health").status_code == 200
        refused = await client.post(URL, json=greedy(BPE))
        assert refused.status_code == 429
        assert envelope(refused)["code"] == "server_overloaded"
        wrong = await client.post(URL, json=greedy(BPE) | {"n": 2, "best_of": 1})
        assert wrong.status_code == 400, "who asks wrongly need not wait"
        got += [line async for line in lines]
        assert events(("\n".join(got) + "\n").encode())
        tight.check(BPE, (await other).json())
    assert tight.states() == ("unloaded", "loaded")


async def test_a_client_that_leaves_the_line_leaves_no_trace(tight: Several) -> None:
    async with httpx.AsyncClient(base_url=tight.server.url, timeout=PATIENCE) as client:
        stream = await client.send(client.build_request("POST", URL, json=LONG), stream=True)
        lines = stream.aiter_lines()
        assert await anext(lines)
        leaving = asyncio.ensure_future(client.post(URL, json=greedy(BPE)))
        await asyncio.to_thread(tight.until, lambda: tight.states() == ("loaded", "loading"))
        leaving.cancel()
        await asyncio.to_thread(tight.until, lambda: tight.states() == ("loaded", "unloaded"))
        await stream.aclose()
    assert tight.states() == ("loaded", "unloaded")
    assert tight.metrics()[f"segue_requests_waiting{{{BPE}}}"] == 0


async def test_a_stream_that_is_left_lets_its_model_leave(tight: Several) -> None:
    async with httpx.AsyncClient(base_url=tight.server.url, timeout=PATIENCE) as client:
        async with client.stream("POST", URL, json=LONG) as stream:
            assert stream.status_code == 200
        answer = await client.post(URL, json=greedy(BPE))
        tight.check(BPE, answer.json())


def test_a_model_that_cannot_be_loaded_is_told_and_tried_again(toy_folder: Path, tmp_path: Path) -> None:
    """It is whole at the start, and cut off later."""
    folder = tmp_path / "models"
    folder.mkdir()
    for name in (SPM, BPE):
        (folder / f"{name}.gguf").write_bytes((toy_folder / f"{name}.gguf").read_bytes())
    with several(tmp_path, folder, bpe='load = "first-use"') as site:
        whole = (folder / f"{BPE}.gguf").read_bytes()
        (folder / f"{BPE}.gguf").write_bytes(whole[:-100_000])
        response = site.api.post(**greedy(BPE))
        assert response.status_code == 503
        error = envelope(response)
        assert (error["type"], error["code"]) == ("server_error", "model_not_loaded")
        assert "not within the file bounds" in error["message"]
        assert int(response.headers["retry-after"]) >= 1
        assert site.models()[BPE]["status"] == {"value": "unloaded", "failed": True}
        assert site.states() == ("loaded", "failed")
        assert site.api.http.get("/health").status_code == 200
        site.check(SPM, site.api.complete(**greedy(SPM)))
        (folder / f"{BPE}.gguf").write_bytes(whole)
        site.check(BPE, site.api.complete(**greedy(BPE)))


def test_a_model_that_nobody_asks_for_leaves_and_comes_again(toy_folder: Path, tmp_path: Path) -> None:
    with several(tmp_path, toy_folder, spm="idle-unload-minutes = 0.001") as site:
        site.until(lambda: site.states() == ("unloaded", "loaded"))
        site.check(SPM, site.api.complete(**greedy(SPM)))
        site.until(lambda: site.states() == ("unloaded", "loaded"))
        assert site.metrics()[f"segue_model_loaded{{{SPM}}}"] == 0


async def test_a_signal_during_a_load_ends_it_in_time(toy_folder: Path, tmp_path: Path) -> None:
    top = 'load = "first-use"\ndrain-seconds = 0'
    server = Server(tmp_path / "log", "--config", config(tmp_path, toy_folder, top))
    site = Several(server, Api(server.url), {})
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
        asked = asyncio.ensure_future(client.post(URL, json=greedy(BPE)))
        await asyncio.to_thread(site.until, lambda: site.states()[1] == "loading")
        ended = await asyncio.to_thread(server.stop)
        response = await asked
    site.api.http.close()
    assert ended == 0
    assert response.status_code == 503
    assert envelope(response)["code"] == "shutting_down"
    assert "Traceback" not in server.said
