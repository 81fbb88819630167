"""The doors that editors know: answers in their servers' shapes, and the same text behind each."""

from typing import Any

import httpx
import pytest

from tests.conftest import Served
from tests.servers import Json, envelope, events, payloads_of, strict_json

FIM, INFILL = "/v1/fim/completions", "/infill"
GAP: Json = {"prompt": "Hello, my", "suffix": " you"}
LLAMA_GAP: Json = {"input_prefix": "Hello,", "prompt": " my", "input_suffix": " you"}
"""The same gap in llama.cpp's words."""


def post(served: Served, path: str, **fields: Any) -> httpx.Response:
    return served.api.http.post(path, json=fields)


def answer(served: Served, path: str, **fields: Any) -> Json:
    response = post(served, path, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("application/json")
    body: Json = strict_json(response.content)
    return body


def chunks(served: Served, path: str, **fields: Any) -> list[Json]:
    response = post(served, path, stream=True, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    payloads = events(response.content)[:-1] if path == FIM else payloads_of(response.content)
    return [strict_json(payload) for payload in payloads]


def refused(served: Served, path: str, status: int = 400, **fields: Any) -> Json:
    response = post(served, path, **fields)
    assert response.status_code == status, response.text
    return envelope(response)


@pytest.fixture(params=["bpe", "guarded", "templated"])
def filler(request: pytest.FixtureRequest) -> Served:
    """Each server that can fill a gap."""
    chosen: Served = request.getfixturevalue(request.param)
    return chosen


# Mistral's


FIM_KEYS = {"id", "object", "created", "model", "choices", "usage"}


@pytest.mark.parametrize(
    ("fields", "ours"),
    [
        ({"temperature": 0, "max_tokens": 30}, {"temperature": 0, "max_tokens": 30}),
        ({"random_seed": 4}, {"seed": 4}),
        ({"random_seed": 4, "top_p": 0.5, "temperature": 0.7}, {"seed": 4, "top_p": 0.5, "temperature": 0.7}),
        ({"random_seed": 4, "stop": "e", "max_tokens": 60}, {"seed": 4, "stop": "e", "max_tokens": 60}),
        ({"random_seed": 4, "stop": ["e", "a"], "min_tokens": 3}, {"seed": 4, "stop": ["e", "a"], "min_tokens": 3}),
        ({"temperature": 0, "suffix": None}, {"temperature": 0, "suffix": None}),
        ({"temperature": 0, "suffix": ""}, {"temperature": 0, "suffix": ""}),
        ({"temperature": 0, "prompt": ""}, {"temperature": 0, "prompt": ""}),
    ],
    ids=str,
)
def test_mistrals_form_has_the_text_of_completions(filler: Served, fields: Json, ours: Json) -> None:
    wanted = filler.api.complete(**GAP | ours)
    got = answer(filler, FIM, **GAP | fields)
    assert set(got) == FIM_KEYS
    assert got["object"] == "chat.completion"
    assert got["model"] == filler.toy.name
    assert type(got["created"]) is int
    (choice,), (same,) = got["choices"], wanted["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": same["text"]},
        "finish_reason": same["finish_reason"],
    }
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert got["usage"][key] == wanted["usage"][key]


@pytest.mark.parametrize("fields", [{"temperature": 0, "max_tokens": 40}, {"random_seed": 1}, {"max_tokens": 0},
                                    {"random_seed": 2, "stop": ["e", " a"], "max_tokens": 60}], ids=str)  # fmt: skip
def test_its_stream_joins_to_the_plain_answer_and_every_chunk_has_a_choice(filler: Served, fields: Json) -> None:
    whole = answer(filler, FIM, **GAP, **{"random_seed": 3} | fields)
    got = chunks(filler, FIM, **GAP, **{"random_seed": 3} | fields)
    assert {chunk["object"] for chunk in got} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in got}) == 1
    # Continue reads choices[0].delta.content of each.
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in got)
    assert text == whole["choices"][0]["message"]["content"]
    assert all(set(chunk["choices"][0]) == {"index", "delta", "finish_reason"} for chunk in got)
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in got]
    assert reasons == [None] * (len(got) - 1) + [whole["choices"][0]["finish_reason"]]
    assert all("usage" not in chunk for chunk in got[:-1])
    assert got[-1]["usage"]["total_tokens"] == whole["usage"]["total_tokens"]


def test_what_continues_adapter_sends_is_taken(bpe: Served) -> None:
    """Its body, fields that Mistral's API lacks among them."""
    body: Json = {
        "model": "toy-bpe", "prompt": "Hello, my", "suffix": " you", "max_tokens": 12, "temperature": 0.01, "top_p": 1,
        "frequency_penalty": 0, "presence_penalty": 0,
        "stop": ["<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>", "<|endoftext|>", "</fim_middle>",
                 "</code>", "/src/", "#- coding: utf-8", "```", "\n\nfunction", "\n\nclass", "\n\ndef"],
    }  # fmt: skip
    assert chunks(bpe, FIM, **body)[-1]["usage"]["completion_tokens"] == 12


def test_mistrals_form_refuses_by_name(bpe: Served, spm: Served) -> None:
    assert refused(bpe, FIM, suffix="a")["message"]
    for name, value in (("prompt", 1), ("prompt", ["a"]), ("suffix", 1), ("max_tokens", -1), ("temperature", 2.5),
                        ("top_p", 2), ("stop", 1), ("stream", 1), ("random_seed", "a"), ("stop", "")):  # fmt: skip
        assert refused(bpe, FIM, **GAP | {name: value})["param"] == name
    assert refused(bpe, FIM, 404, **GAP, model="nope")["code"] == "model_not_found"
    assert refused(bpe, FIM, **GAP | {"prompt": "a" * 600})["code"] == "context_length_exceeded"
    for stream in (False, True):
        error = refused(spm, FIM, **GAP, stream=stream)
        assert error["param"] == "suffix"
        assert "fill-in-the-middle" in error["message"]
    response = bpe.api.http.post(FIM, content=b"{")
    assert response.status_code == 400
    envelope(response)


# llama.cpp's


def test_llama_cpps_form_has_the_text_of_completions(filler: Served) -> None:
    wanted = filler.api.complete(**GAP, temperature=0, max_tokens=30)
    (choice,) = wanted["choices"]
    got = answer(filler, INFILL, **LLAMA_GAP, temperature=0, n_predict=30)
    timings = got.pop("timings")
    got.pop("tokens_cached")
    assert got == {
        "content": choice["text"],
        "stop": True,
        "model": filler.toy.name,
        "stop_type": "limit",
        "tokens_predicted": 30,
        "tokens_evaluated": wanted["usage"]["prompt_tokens"],
        "truncated": False,
    }
    assert (timings["prompt_n"], timings["predicted_n"]) == (got["tokens_evaluated"], 30)
    assert all(type(value) in {int, float} and value >= 0 for value in timings.values())
    assert set(timings) == {
        "prompt_n", "prompt_ms", "prompt_per_second", "predicted_n", "predicted_ms", "predicted_per_second",
    }  # fmt: skip


def test_it_samples_as_that_server_does(bpe: Served) -> None:
    """Its defaults: temperature 0.8, top_k 40, top_p 0.95, min_p 0.05."""
    wanted = bpe.api.choice(**GAP, seed=6, temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, max_tokens=30)
    assert answer(bpe, INFILL, **LLAMA_GAP, seed=6, n_predict=30)["content"] == wanted["text"]
    wanted = bpe.api.choice(**GAP, seed=6, max_tokens=30)
    own: Json = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0}
    assert answer(bpe, INFILL, **LLAMA_GAP, seed=6, n_predict=30, **own)["content"] == wanted["text"]


def test_its_json_is_compact(bpe: Served) -> None:
    """llama.vim takes an answer for one only if it finds `"content":"` in it."""
    response = post(bpe, INFILL, **LLAMA_GAP, n_predict=3)
    assert response.text.startswith('{"content":"')
    assert '": ' not in response.text.replace('": "', "")


@pytest.mark.parametrize("fields", [{"temperature": 0, "n_predict": 40}, {"seed": 1}, {"n_predict": 0},
                                    {"seed": 2, "stop": ["e", " a"], "n_predict": 60}], ids=str)  # fmt: skip
def test_its_stream_joins_to_the_plain_answer(filler: Served, fields: Json) -> None:
    whole = answer(filler, INFILL, **LLAMA_GAP, **{"seed": 3} | fields)
    *pieces, last = chunks(filler, INFILL, **LLAMA_GAP, **{"seed": 3} | fields)
    assert "".join(piece["content"] for piece in pieces) + last["content"] == whole["content"]
    assert all(piece["stop"] is False and piece["content"] for piece in pieces)
    assert set(last) == set(whole)
    for key in ("stop", "model", "stop_type", "tokens_predicted", "tokens_evaluated", "truncated"):
        assert last[key] == whole[key]


@pytest.mark.parametrize("stream", [False, True])
def test_n_predict_0_reads_only(bpe: Served, stream: bool) -> None:
    got = chunks(bpe, INFILL, **LLAMA_GAP, n_predict=0)[-1] if stream else answer(bpe, INFILL, **LLAMA_GAP, n_predict=0)
    assert (got["content"], got["tokens_predicted"], got["stop_type"]) == ("", 0, "limit")
    assert got["tokens_evaluated"] == 7


def test_without_a_number_it_predicts_until_an_end_or_half_the_context(bpe: Served) -> None:
    greedy: Json = {"temperature": 0}  # toy-bpe's greedy path never ends
    assert answer(bpe, INFILL, **LLAMA_GAP, **greedy, n_predict=-1)["tokens_predicted"] == 256
    assert answer(bpe, INFILL, **LLAMA_GAP, **greedy, n_predict=100_000)["tokens_predicted"] == 256
    for fields in ({}, {"n_predict": None}):
        assert answer(bpe, INFILL, **LLAMA_GAP, **greedy, **fields)["tokens_predicted"] == 128
    ended = answer(bpe, INFILL, input_prefix="a", input_suffix="b", seed=1, temperature=1, top_k=0, top_p=1, min_p=0,
                   n_predict=-1)  # fmt: skip
    assert ended["tokens_predicted"] < 256
    assert ended["stop_type"] == "eos"


def test_what_is_too_long_loses_the_beginning_of_its_prefix(bpe: Served) -> None:
    n_kept = 512 - 20 - 3 - 1
    text = "b" * 1000 + "a" * n_kept
    got = answer(bpe, INFILL, input_prefix=text, input_suffix="c", n_predict=20, temperature=0)
    assert got["truncated"] is True
    assert (got["tokens_evaluated"], got["tokens_predicted"]) == (492, 20)
    wanted = bpe.api.choice(prompt="a" * n_kept, suffix="c", max_tokens=20, temperature=0)
    assert got["content"] == wanted["text"]
    short = answer(bpe, INFILL, input_prefix="a" * n_kept, input_suffix="c", n_predict=20, temperature=0)
    assert short["truncated"] is False
    assert short["content"] == wanted["text"]


def test_every_part_may_be_left_out(bpe: Served) -> None:
    fields: Json = {"temperature": 0, "n_predict": 9}
    for gap, ours in (
        ({"input_prefix": "Hello", "input_suffix": "a"}, {"prompt": "Hello", "suffix": "a"}),
        ({"prompt": "Hello", "input_suffix": "a"}, {"prompt": "Hello", "suffix": "a"}),
        ({"input_prefix": "", "input_suffix": "a", "prompt": ""}, {"prompt": "", "suffix": "a"}),
        ({"input_prefix": "Hello", "input_suffix": ""}, {"prompt": "Hello"}),
        ({"input_prefix": "Hello", "input_suffix": None}, {"prompt": "Hello"}),
        ({}, {"prompt": ""}),
    ):
        wanted = bpe.api.choice(temperature=0, max_tokens=9, **ours)
        assert answer(bpe, INFILL, **gap, **fields)["content"] == wanted["text"]


def test_what_llama_vim_sends_is_taken(bpe: Served) -> None:
    body: Json = {
        "id_slot": 0, "input_prefix": "Hello,\n", "input_suffix": "\n you\n", "input_extra": [], "prompt": "my",
        "n_predict": 12, "stop": [], "n_indent": 0, "top_k": 40, "top_p": 0.99, "cache_prompt": True,
        "samplers": ["top_k", "top_p", "infill"], "t_max_prompt_ms": 500, "t_max_predict_ms": 1000, "stream": False,
        "seed": 1,
        "response_fields": ["content", "timings/prompt_n", "truncated", "tokens_cached"],
    }  # fmt: skip
    assert answer(bpe, INFILL, **body)["tokens_predicted"] <= 12
    warming = body | {"n_predict": 0, "samplers": [], "prompt": "", "t_max_prompt_ms": 1, "response_fields": [""]}
    assert answer(bpe, INFILL, **warming)["content"] == ""


def test_llama_cpps_form_refuses_by_name(bpe: Served, spm: Served) -> None:
    for name, value in (("input_prefix", 1), ("input_suffix", []), ("n_predict", "a"), ("n_predict", -2),
                        ("temperature", -1), ("stop", 1), ("stream", "yes")):  # fmt: skip
        assert refused(bpe, INFILL, **LLAMA_GAP | {name: value})["param"] == name
    error = refused(spm, INFILL, **LLAMA_GAP)
    assert error["param"] in {"suffix", "input_suffix"}
    assert "fill-in-the-middle" in error["message"]
    response = bpe.api.http.post(INFILL, content=b"[")
    assert response.status_code == 400
    envelope(response)


def test_strictness_asks_no_model_of_clients_that_name_none(strict: Served) -> None:
    got = answer(strict, INFILL, prompt="Hello", temperature=0, n_predict=5)
    assert got["content"] == strict.api.choice(prompt="Hello", temperature=0, max_tokens=5)["text"]


# What llama.vscode asks for


def test_the_servers_properties(bpe: Served) -> None:
    response = bpe.api.http.get("/props")
    assert response.status_code == 200
    body = strict_json(response.content)
    assert body["default_generation_settings"]["n_ctx"] == 512
    assert body["total_slots"] == 16
    assert (body["model_path"], body["model_alias"]) == ("toy-bpe", "toy-bpe")
    assert body["chat_template"] == ""
    assert body["modalities"] == {"vision": False, "audio": False}
    assert body["build_info"].startswith("segue ")
