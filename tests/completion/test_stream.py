"""A stream, joined, is the plain answer; and what its chunks look like on the way."""

import json
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import toys
from tests.conftest import Served
from tests.oracle import check_logprobs
from tests.servers import Json, Streamed, check_usage, events

HELLO = "Hello, my name is"


def check_shape(streamed: Streamed, request: Json, n_choices: int) -> None:
    """What holds of every stream."""
    options = request.get("stream_options") or {}
    head = {key: streamed.chunks[0][key] for key in ("id", "object", "created", "model", "system_fingerprint")}
    assert head["id"].startswith("cmpl-")
    assert head["object"] == "text_completion"
    keys = {*head, "choices"} | ({"usage"} if options.get("include_usage") else set())
    for chunk in streamed.chunks:
        assert set(chunk) == keys
        assert {key: chunk[key] for key in head} == head
    chunks = streamed.chunks
    if options.get("include_usage"):
        *chunks, last = chunks
        assert last["choices"] == []
        check_usage(last["usage"])
        for chunk in chunks:
            if options.get("continuous_usage_stats"):
                check_usage(chunk["usage"])
            else:
                assert chunk["usage"] is None
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    assert {part["index"] for part in streamed.parts} == set(range(n_choices))
    for index in range(n_choices):
        parts = [part for part in streamed.parts if part["index"] == index]
        assert [part["finish_reason"] is not None for part in parts] == [False] * (len(parts) - 1) + [True]
        for part in parts:
            assert (part["logprobs"] is None) == (request.get("logprobs") is None)


def check(served: Served, request: Json) -> None:
    """The stream of a request is its plain answer."""
    answer = served.api.complete(**request)
    streamed = served.api.stream(**request)
    check_shape(streamed, request, len(answer["choices"]))
    assert streamed.choices == answer["choices"]
    if (request.get("stream_options") or {}).get("include_usage"):
        assert streamed.usage == answer["usage"]


def prompts_of(served: Served) -> list[Any]:
    ids = served.oracle.read("*&^|").ids
    return [HELLO, ["日本 *", "a<|mark|> &"], ids, [ids, [served.toy.piece("$")]]]


def stops_of(served: Served) -> list[Any]:
    """None; and several of which, over many draws, each is met and each is half met."""
    return [None, ["e", "日", " na", "\ufffd", "He", "<|mark|>", "\n\n", toys.EMOJI]]


@pytest.mark.parametrize(("echo", "logprobs"), list(product([False, True], [None, 0, 3])))
def test_a_stream_is_the_plain_answer_in_every_combination(served: Served, echo: bool, logprobs: int | None) -> None:
    for seed, (prompt, stop, n, usage) in enumerate(
        product(prompts_of(served), stops_of(served), (1, 3), ({}, {"include_usage": True}))
    ):
        check(
            served,
            {
                "prompt": prompt,
                "stop": stop,
                "n": n,
                "echo": echo,
                "logprobs": logprobs,
                "seed": seed,
                "max_tokens": 24,
                "stream_options": usage,
                "return_token_ids": seed % 2 == 0,
                "ignore_eos": seed % 3 == 0,
            },
        )


CHOSEN = st.fixed_dictionaries(
    {
        "prompt": st.sampled_from([HELLO, "", "*", "$", "&^", "日本 e\u0301", ["a", "*|"], ["!", "?", "#"]]),
        "seed": st.integers(0, 2**63 - 1),
        "max_tokens": st.integers(0, 40),
    },
    optional={
        "n": st.integers(1, 4),
        "echo": st.booleans(),
        "logprobs": st.sampled_from([None, 0, 1, 6]),
        "stop": st.lists(
            st.one_of(
                st.text(" abehno\n*&日\ufffd", min_size=1, max_size=3),
                st.sampled_from(["<|mark|>", "</s>", "<|im_end|>", toys.EMOJI, "€", "é"]),
            ),
            max_size=6,
        ),
        "temperature": st.sampled_from([0, 0.7, 1, 2]),
        "top_p": st.sampled_from([0.5, 1]),
        "top_k": st.sampled_from([0, 5]),
        "frequency_penalty": st.sampled_from([0, 1.5]),
        "ignore_eos": st.booleans(),
        "min_tokens": st.integers(0, 0),
        "stream_options": st.sampled_from(
            [None, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
        ),
        "return_token_ids": st.booleans(),
    },
)


@settings(max_examples=50, deadline=None, derandomize=True, database=None,
          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
@given(request=CHOSEN)
def test_a_stream_is_the_plain_answer_for_chosen_requests(spm: Served, bpe: Served, request: Json) -> None:
    for served in (spm, bpe):
        check(served, request)


@settings(max_examples=50, deadline=None, derandomize=True, database=None,
          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
@given(request=CHOSEN)
def test_chosen_requests_are_answered_as_the_oracle_does(spm: Served, bpe: Served, request: Json) -> None:
    """The same requests against what is computed from their draws without stops."""
    for served in (spm, bpe):
        stops = [stop for stop in request.get("stop", []) if stop]
        named = [token for token in served.oracle.special if served.toy.names[token] in stops]
        free = request | {"stop": [], "return_token_ids": True, "logprobs": None, "stream_options": None}
        if named:
            free |= {"stop_token_ids": named}
        choices = served.api.choices(**request | {"stream_options": None})
        for whole, choice in zip(served.api.choices(**free), choices, strict=True):
            prompts = request["prompt"] if isinstance(request["prompt"], list) else [request["prompt"]]
            read = served.oracle.read(prompts[choice["index"] // request.get("n", 1)])
            wanted = served.oracle.complete(whole["token_ids"], request["max_tokens"], stops, named)
            echo = request.get("echo", False)
            assert choice["text"] == (read.text if echo else "") + wanted.text
            assert choice["finish_reason"] == wanted.finish_reason
            if request.get("logprobs") is not None:
                entries = served.oracle.entries(read, wanted, request["logprobs"], echo)
                check_logprobs(choice["logprobs"], entries)


def test_events_are_exact_bytes(served: Served) -> None:
    response = served.api.post(prompt="日本*", stream=True, echo=True, logprobs=1, max_tokens=8, temperature=0)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert "content-encoding" not in response.headers
    assert "content-length" not in response.headers
    for payload in events(response.content)[:-1]:
        compact = json.dumps(json.loads(payload), separators=(",", ":"), ensure_ascii=False)
        assert len(payload) <= len(compact), "no space is wasted"
    assert "日本" in response.content.decode()


def test_a_stream_is_not_compressed_though_the_client_would_take_it(served: Served) -> None:
    body = b'{"prompt": "a", "stream": true, "max_tokens": 40}'
    response = served.api.raw(body, **{"accept-encoding": "gzip, deflate, br"})
    assert "content-encoding" not in response.headers
    assert events(response.content)


def test_the_echo_comes_first_in_each_choice_and_once(served: Served) -> None:
    prompts = [HELLO, "日本*", ""]
    streamed = served.api.stream(prompt=prompts, n=3, echo=True, logprobs=2, max_tokens=6, seed=1)
    for index in range(9):
        prompt = prompts[index // 3]
        first = next(part for part in streamed.parts if part["index"] == index)
        assert first["text"] == prompt
        assert first["finish_reason"] is None
        read = served.oracle.read(prompt)
        assert first["logprobs"]["tokens"] == [text for _, text, _ in read.entries]
        assert first["logprobs"]["token_logprobs"][:1] == [None] * bool(prompt)


def test_the_last_chunk_is_empty_unless_something_was_held_back(served: Served) -> None:
    request: Json = {"prompt": HELLO, "max_tokens": 8, "temperature": 0, "logprobs": 1}
    last = served.api.stream(**request).parts[-1]
    assert last["text"] == ""
    assert last["logprobs"] == {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    assert last["finish_reason"] == "length"
    text = served.api.choice(**request)["text"]
    held = served.api.stream(**request, stop=[text[-3:] + "\x00"]).parts[-1]
    assert held["text"] == text[-3:]
    assert held["logprobs"]["tokens"]
    end = served.api.stream(prompt="!", max_tokens=8, temperature=0, logprobs=0).parts
    assert len(end) == 1
    assert end[0]["text"] == ""
    assert len(end[0]["logprobs"]["tokens"]) == 1
    assert end[0]["finish_reason"] == "stop"


def test_each_token_is_a_chunk_as_soon_as_its_text_is_certain(served: Served) -> None:
    parts = served.api.stream(prompt=HELLO, max_tokens=30, temperature=0, logprobs=0).parts
    assert [len(part["logprobs"]["tokens"]) for part in parts] == [1] * 30 + [0]
    assert all(part["text"] == "".join(part["logprobs"]["tokens"]) for part in parts)
    # Nothing is held back for a stop that these characters cannot begin.
    assert served.api.stream(prompt=HELLO, max_tokens=30, temperature=0, logprobs=0, stop=["\x00a"]).parts == parts


def test_a_character_comes_whole(served: Served) -> None:
    parts = served.api.stream(prompt="*", max_tokens=6, temperature=0, logprobs=0).parts
    assert parts[0]["text"] == toys.EMOJI
    assert len(parts[0]["logprobs"]["tokens"]) == 4
    for seed in range(8):
        request: Json = {"prompt": "*&$", "seed": seed, "n": 8, "max_tokens": 60, "ignore_eos": True}
        plain = "".join(choice["text"] for choice in served.api.choices(**request))
        streamed = served.api.stream(**request)
        assert sum(part["text"].count("\ufffd") for part in streamed.parts) == plain.count("\ufffd")


def test_a_stop_never_leaks(served: Served) -> None:
    """Of each choice, after each chunk: what was sent is a beginning of the final text."""
    stops = ["e", "na", " ti", "the"]
    for seed in range(6):
        request: Json = {"prompt": HELLO, "seed": seed, "n": 8, "max_tokens": 40, "stop": stops}
        plain = served.api.choices(**request)
        sent = [""] * 8
        for part in served.api.stream(**request).parts:
            sent[part["index"]] += part["text"]
            assert plain[part["index"]]["text"].startswith(sent[part["index"]])
        assert not any(stop in text for stop in stops for text in sent)


def test_choices_of_a_stream_interleave(served: Served) -> None:
    parts = served.api.stream(prompt=["a", "b"], n=2, max_tokens=40, seed=1, ignore_eos=True).parts
    ends = [i for i, part in enumerate(parts) if part["finish_reason"]]
    begins = [next(i for i, part in enumerate(parts) if part["index"] == index) for index in range(4)]
    assert max(begins) < min(ends)


def test_usage_comes_last_and_only_if_asked_for(served: Served) -> None:
    request: Json = {"prompt": ["a", HELLO], "n": 2, "max_tokens": 7, "seed": 5}
    usage = served.api.complete(**request)["usage"]
    for options in (None, {}, {"include_usage": False}, {"include_usage": None}, {"continuous_usage_stats": True}):
        streamed = served.api.stream(**request, stream_options=options)
        assert all("usage" not in chunk and chunk["choices"] for chunk in streamed.chunks)
    streamed = served.api.stream(**request, stream_options={"include_usage": True})
    assert streamed.usage == usage
    assert [chunk["usage"] for chunk in streamed.chunks[:-1]] == [None] * (len(streamed.chunks) - 1)


def test_continuous_usage_grows_to_the_totals(served: Served) -> None:
    request: Json = {"prompt": HELLO, "n": 3, "max_tokens": 9, "seed": 5, "ignore_eos": True}
    options = {"include_usage": True, "continuous_usage_stats": True}
    streamed = served.api.stream(**request, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in streamed.chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 27
    assert len(set(counts)) > 9
    assert {chunk["usage"]["prompt_tokens"] for chunk in streamed.chunks} == {len(served.oracle.read(HELLO).ids)}


def test_stream_options_do_nothing_to_a_plain_answer(served: Served) -> None:
    wanted = served.api.choices(prompt="a", seed=1)
    assert served.api.choices(prompt="a", seed=1, stream_options={"include_usage": True}) == wanted


def test_nothing_is_streamed_where_nothing_is_asked_for(served: Served) -> None:
    for echo in (False, True):
        streamed = served.api.stream(prompt=HELLO, max_tokens=0, echo=echo, n=2)
        assert [part["text"] for part in streamed.parts if part["finish_reason"]] == ["", ""]
        assert [choice["text"] for choice in streamed.choices] == [HELLO * echo] * 2


@pytest.mark.parametrize("field", [{"temperature": 3}, {"prompt": []}, {"logprobs": 99}, {"stop": [""]}, {"n": 0}])
def test_what_is_refused_is_refused_before_the_stream(served: Served, field: Json) -> None:
    served.api.refused(**{"prompt": "a", "stream": True} | field)
    served.api.refused(404, prompt="a", stream=True, model="nope")
