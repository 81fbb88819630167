"""Every field: its default, null, its range, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Served
from tests.servers import Api, envelope, names, running, shown

DEFAULTS: dict[str, Any] = {
    "best_of": 1,
    "echo": False,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "logit_bias": {},
    "logprobs": None,
    "max_tokens": 16,
    "n": 1,
    "stop": [],
    "stream": False,
    "stream_options": None,
    "suffix": "",
    "temperature": 1,
    "top_p": 1,
    "user": "somebody",
    "top_k": 0,
    "min_p": 0,
    "ignore_eos": False,
    "min_tokens": 0,
    "stop_token_ids": [],
    "truncate_prompt_tokens": None,
    "return_token_ids": False,
}
REQUEST: dict[str, Any] = {"prompt": "Hello, my name is", "seed": 11}


def test_every_field_at_its_default_and_as_null_changes_nothing(served: Served) -> None:
    wanted = served.api.choices(**REQUEST)
    for name, default in DEFAULTS.items():
        assert served.api.choices(**REQUEST, **{name: default}) == wanted, name
        assert served.api.choices(**REQUEST, **{name: None}) == wanted, name
    assert served.api.choices(**REQUEST, **DEFAULTS, model=served.toy.name) == wanted
    assert served.api.choices(**REQUEST, **dict.fromkeys(DEFAULTS), model=None) == wanted


def test_floats_may_be_written_as_integers_and_integers_not_as_floats(served: Served) -> None:
    whole = served.api.choices(**REQUEST, temperature=1, top_p=1, presence_penalty=2, min_p=0)
    assert served.api.choices(**REQUEST, temperature=1.0, top_p=1.0, presence_penalty=2.0, min_p=0.0) == whole
    for name in ("max_tokens", "n", "best_of", "logprobs", "seed", "top_k", "min_tokens"):
        assert served.api.refused(prompt="a", **{name: 1.5})["param"] == name


def test_sixteen_tokens_by_default(served: Served) -> None:
    for field in ({}, {"max_tokens": None}):
        answer = served.api.complete(prompt="Hello", temperature=0, **field)
        assert answer["usage"]["completion_tokens"] == 16
        assert answer["choices"][0]["finish_reason"] == "length"


EDGES: list[tuple[str, Any]] = [
    ("best_of", 20),
    ("frequency_penalty", -2),
    ("frequency_penalty", 2),
    ("presence_penalty", -2.0),
    ("presence_penalty", 2.0),
    ("repetition_penalty", 2),
    ("repetition_penalty", 0.01),
    ("logit_bias", {"0": -100, "1": 100}),
    ("logit_bias", {"5": 0.5}),
    ("logprobs", 0),
    ("logprobs", 20),
    ("max_tokens", 0),
    ("n", 128),
    ("seed", 0),
    ("seed", -1),
    ("seed", -(2**63)),
    ("seed", 2**63 - 1),
    ("stop", "x"),
    ("stop", ["x"] * 64),
    ("temperature", 0),
    ("temperature", 2),
    ("temperature", 1e-6),
    ("temperature", 1e-4),
    ("top_p", 0),
    ("top_p", 1e-9),
    ("user", ""),
    ("top_k", 10**6),
    ("min_p", 1),
    ("min_tokens", 16),
    ("stop_token_ids", [0]),
    ("stream_options", {}),
    ("stream_options", {"include_usage": True}),
    ("stream_options", {"include_usage": None, "continuous_usage_stats": None}),
]


@pytest.mark.parametrize(("name", "value"), EDGES, ids=shown)
def test_the_edges_of_each_range_are_inside(served: Served, name: str, value: Any) -> None:
    served.api.complete(prompt="a", **{name: value})


OUTSIDE: list[tuple[str, Any]] = [
    ("best_of", 0),
    ("best_of", -1),
    ("best_of", 21),
    ("frequency_penalty", 2.1),
    ("frequency_penalty", -2.1),
    ("presence_penalty", 2.1),
    ("presence_penalty", -2.1),
    ("repetition_penalty", 0),
    ("repetition_penalty", -1),
    ("repetition_penalty", 2.01),
    ("logprobs", -1),
    ("logprobs", 21),
    ("logprobs", 100000),
    ("logprobs", 10**30),
    ("max_tokens", -1),
    ("n", 0),
    ("n", -1),
    ("n", 129),
    ("seed", 2**63),
    ("seed", -(2**63) - 1),
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("top_p", -0.1),
    ("top_p", 1.1),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("top_k", -2),
    ("min_tokens", -1),
    ("min_tokens", 17),
]
WRONG: dict[str, list[Any]] = {
    "best_of logprobs max_tokens n seed top_k min_tokens": [True, False, "1", [], {}],
    "temperature top_p min_p frequency_penalty presence_penalty repetition_penalty": [True, "1", [], {}],
    "echo stream ignore_eos return_token_ids": [0, 1, "true", [], {}],
    "model suffix user": [1, True, [], {}],
    "stop": [1, True, {}, [1], [None], [["a"]]],
    "logit_bias": ["a", 1, True, [], [1]],
    "stop_token_ids": [1, "1", {}, ["1"], [True], [1.5], [None]],
}
WRONG_TYPE = [(name, value) for names, values in WRONG.items() for name in names.split() for value in values]


@pytest.mark.parametrize(("name", "value"), OUTSIDE + WRONG_TYPE, ids=shown)
def test_a_value_outside_its_range_or_type_is_refused_by_name_and_value(spm: Served, name: str, value: Any) -> None:
    error = spm.api.refused(**{"prompt": "a", name: value})
    assert error["type"] == "invalid_request_error"
    assert error["param"] == name
    assert name in error["message"]
    assert names(error["message"], value), error["message"]


def test_a_ceiling_names_its_setting(served: Served) -> None:
    assert "--max-logprobs" in served.api.refused(prompt="a", logprobs=21)["message"]
    assert "--max-stop" in served.api.refused(prompt="a", stop=["x"] * 65)["message"]


def test_a_refusal_is_short_whatever_was_sent(served: Served) -> None:
    fields: list[dict[str, Any]] = [
        {"logprobs": 10**3000},
        {"user": ["x" * 10000]},
        {"model": "m" * 10000},
        {"logit_bias": {"k" * 10000: 1}},
        {"stop": ["x" * 100000]},
        {"prompt": [10**3000]},
    ]
    for field in fields:
        response = served.api.post(**{"prompt": "a"} | field)
        assert response.status_code in {400, 404}
        assert len(response.content) < 1000


DIGITS = "1" + "0" * 5000
"""Python refuses to read or write an integer of so many digits."""
ENDLESS: list[tuple[str, str]] = [
    *((name, DIGITS) for name in ("best_of", "logprobs", "max_tokens", "n", "seed", "min_tokens", "temperature")),
    ("temperature", "1e400"),
    ("temperature", "-1e400"),
    ("prompt", DIGITS),
    ("prompt", f"[{DIGITS}]"),
    ("prompt", f"[1, -{DIGITS}]"),
    ("stop_token_ids", f"[{DIGITS}]"),
    ("logit_bias", f'{{"1": {DIGITS}}}'),
    ("user", DIGITS),
]


@pytest.mark.parametrize(("name", "value"), ENDLESS, ids=shown)
def test_a_number_of_any_length_is_refused_by_name(spm: Served, name: str, value: str) -> None:
    body = f'{{"{name}": {value}}}' if name == "prompt" else f'{{"prompt": "a", "{name}": {value}}}'
    response = spm.api.raw(body.encode())
    assert response.status_code == 400, response.text
    assert envelope(response)["param"] == name
    assert len(response.content) < 1000
    assert spm.api.choice(prompt="a", max_tokens=1)


BAD_BIASES: list[tuple[dict[str, Any], str]] = [
    ({"999999999": 1}, "999999999"),
    ({"-1": 5}, "-1"),
    ({"abc": 1}, "abc"),
    ({"": 1}, "''"),
    ({"1.0": 1}, "1.0"),
    ({" 1": 1}, " 1"),
    ({"+1": 1}, "+1"),
    ({"1e2": 1}, "1e2"),
    ({"\u0663": 1}, "\u0663"),
    ({"9" * 5000: 1}, "999"),
    ({"5": 101}, "101"),
    ({"5": -100.5}, "-100.5"),
    ({"5": "x"}, "x"),
    ({"5": "1"}, "1"),
    ({"5": True}, "bool"),
    ({"5": None}, "null"),
    ({"5": [1]}, "[1]"),
]


@pytest.mark.parametrize(("bias", "named"), BAD_BIASES, ids=shown)
def test_a_bad_bias_is_refused(served: Served, bias: dict[str, Any], named: str) -> None:
    error = served.api.refused(prompt="a", logit_bias=bias)
    assert error["param"] == "logit_bias"
    assert named in error["message"]


def test_a_bias_just_beyond_the_vocabulary_is_refused(served: Served) -> None:
    assert served.api.refused(prompt="a", logit_bias={str(served.toy.n_vocab): 1})["param"] == "logit_bias"
    assert served.api.choice(prompt="a", logit_bias={str(served.toy.n_vocab - 1): 1})


def test_stop_token_ids_beyond_the_vocabulary_are_refused(served: Served) -> None:
    for token in (-1, served.toy.n_vocab, 2**40):
        error = served.api.refused(prompt="a", stop_token_ids=[token])
        assert error["param"] == "stop_token_ids"
        assert str(token) in error["message"]


def test_best_of_must_be_at_least_n_and_equal_to_it_in_a_stream(served: Served) -> None:
    error = served.api.refused(prompt="a", best_of=1, n=2)
    assert error["param"] == "best_of"
    assert "1" in error["message"]
    assert "2" in error["message"]
    assert served.api.refused(prompt="a", best_of=2, stream=True)["param"] == "best_of"
    assert len(served.api.choices(prompt="a", best_of=2, n=2)) == 2
    assert len(served.api.choices(prompt="a", n=21)) == 21
    assert served.api.stream(prompt="a", best_of=2, n=2).choices[1]["finish_reason"]


def test_unknown_fields_are_ignored_wherever_they_stand(served: Served) -> None:
    wanted = served.api.choices(**REQUEST)
    unknown: dict[str, Any] = {
        "guided_json": {"type": "object"},
        "mirostat": 2,
        "": 1,
        "PROMPT": "other",
        "cache_prompt": True,
        "stream_options": {"include_obfuscation": False, "deep": [[{}]]},
        "samplers": ["top_k", None],
        "n_predict": -1,
        "message": "\ud83d\ude00",
    }
    assert served.api.choices(**REQUEST, **unknown) == wanted


def test_a_user_is_kept_for_the_log_line(toy_folder: Path, tmp_path: Path) -> None:
    flags = ("--model", str(toy_folder / "toy-spm.gguf"), "--threads", "1")
    with running(tmp_path / "log", *flags) as server:
        api = Api(server.url)
        api.complete(prompt="a", user="user-plain-4711")
        api.stream(prompt="a", user="user-stream-4712")
        api.http.close()
    assert "user-plain-4711" in server.said
    assert "user-stream-4712" in server.said
