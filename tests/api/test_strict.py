"""--strict refuses everything that OpenAI would refuse, and nothing else."""

from typing import Any

import pytest

from tests.conftest import Served

OPENAI: dict[str, Any] = {
    "model": "toy-spm",
    "prompt": "Hello",
    "best_of": 2,
    "echo": True,
    "frequency_penalty": 0.5,
    "logit_bias": {"300": 1},
    "logprobs": 5,
    "max_tokens": 4,
    "n": 2,
    "presence_penalty": 0.5,
    "seed": 1,
    "stop": ["a", "b", "c", "d"],
    "stream": False,
    "stream_options": None,
    "suffix": None,
    "temperature": 1,
    "top_p": 0.9,
    "user": "somebody",
}
EXTENSIONS: dict[str, Any] = {
    "top_k": 0,
    "min_p": 0,
    "ignore_eos": False,
    "min_tokens": 0,
    "stop_token_ids": [],
    "truncate_prompt_tokens": 5,
    "return_token_ids": False,
    "cache_prompt": True,
}


def test_all_of_openais_fields_are_taken(strict: Served, spm: Served) -> None:
    assert strict.api.choices(**OPENAI) == spm.api.choices(**OPENAI)
    streamed = strict.api.stream(**OPENAI | {"stream_options": {"include_usage": True}})
    assert streamed.choices == spm.api.choices(**OPENAI)
    assert strict.api.choices(**dict.fromkeys(OPENAI) | {"model": "toy-spm"})


@pytest.mark.parametrize("name", EXTENSIONS)
def test_extensions_are_refused_even_at_their_default(strict: Served, name: str) -> None:
    for value in (EXTENSIONS[name], None):
        error = strict.api.refused(prompt="a", **{name: value})
        assert error["param"] == name
        assert name in error["message"]


@pytest.mark.parametrize("name", ["guided_json", "", "Prompt", "n_predict", "é" * 200])
def test_unknown_fields_are_refused_by_name(strict: Served, name: str) -> None:
    error = strict.api.refused(prompt="a", **{name: None})
    assert error["param"] == name[: len(error["param"] or "")]
    assert error["param"] or not name
    assert error["type"] == "invalid_request_error"


def test_a_model_must_be_named(strict: Served) -> None:
    for model in ("", None):
        error = strict.api.refused(prompt="a", model=model)
        assert error["param"] == "model"
    response = strict.api.raw(b'{"prompt": "a"}')
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "model"


def test_ceilings_are_openais(strict: Served) -> None:
    assert strict.api.choice(prompt="a", logprobs=5)
    error = strict.api.refused(prompt="a", logprobs=6)
    assert error["param"] == "logprobs"
    assert "0..5" in error["message"]
    assert strict.api.choice(prompt="a", stop=["x"] * 4)
    assert strict.api.refused(prompt="a", stop=["x"] * 5)["param"] == "stop"


def test_stream_options_need_a_stream(strict: Served) -> None:
    for stream in ({}, {"stream": False}, {"stream": None}):
        error = strict.api.refused(prompt="a", stream_options={"include_usage": True}, **stream)
        assert error["param"] == "stream_options"
    assert strict.api.stream(prompt="a", stream_options={"include_usage": True}).usage
    assert strict.api.choice(prompt="a", stream_options=None)


def test_unknown_nested_fields_are_refused(strict: Served) -> None:
    error = strict.api.refused(prompt="a", stream=True, stream_options={"include_usage": True, "other": 1})
    assert (error["param"] or "").startswith("stream_options")
