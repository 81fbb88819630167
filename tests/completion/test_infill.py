"""A suffix: what the model reads for a gap, token by token, and every other field beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.completion.infill import Infill
from app.engine.llama import LlamaModel
from app.engine.offload import Offload
from tests import oracle
from tests.conftest import TEMPLATE, Served
from tests.oracle import check_logprobs
from tests.servers import Api, Json, one_line, segue
from tests.toys import EMOJI, Toy

GAP: Json = {"prompt": "Hello, my", "suffix": " you"}
HELLO = ["Hello", ",", " my"]
"""The pieces of GAP's prompt."""

Pieces = Sequence[str | int]

TEXTS: list[tuple[str, Pieces]] = [
    ("1, ", ["1", ",", " "]),
    (", 5", [",", " ", "5"]),
    ("Hello the", ["Hello", " the"]),
    (" Hello", [" Hello"]),
    (" ", [" "]),
    ("\n\n", ["\n\n"]),
    ("é日", ["é", 0xE6, 0x97, 0xA5]),
    (EMOJI, [0xF0, 0x9F, 0x98, 0x80]),
    ("a<|mark|>b", list("a<|mark|>b")),
    ("<s>", list("<s>")),
    ("</s>", list("</s>")),
    ("<|fim_prefix|>", list("<|fim_prefix|>")),
    ("<|fim_suffix|>x", list("<|fim_suffix|>x")),
    ("<|endoftext|>", list("<|endoftext|>")),
]
"""Texts and their pieces, none of which is a special token or a space before the text; numbers are bytes."""


def tokens(toy: Toy, pieces: Pieces) -> list[int]:
    return [toy.piece(piece) if isinstance(piece, str) else toy.byte(piece) for piece in pieces]


def framed(toy: Toy, prefix: Sequence[int], suffix: Sequence[int]) -> list[int]:
    """What a model with tokens of its own reads."""
    assert toy.fim
    return [toy.fim.pre, *prefix, toy.fim.suf, *suffix, toy.fim.mid]


def gap_ids(toy: Toy) -> list[int]:
    return framed(toy, tokens(toy, HELLO), tokens(toy, [" you"]))


def read(api: Api, **fields: Any) -> list[int]:
    """The ids that the model reads; their number is the usage's."""
    answer = api.complete(max_tokens=0, return_token_ids=True, **fields)
    (choice,) = answer["choices"]
    ids: list[int] = choice["prompt_token_ids"]
    assert choice["text"] == ("" if not fields.get("echo") else fields["prompt"])
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == len(ids)
    return ids


def as_prompt(ids: list[int], text: str) -> oracle.Prompt:
    return oracle.Prompt(ids, 0, text, [])


# What is read


@pytest.mark.parametrize(("text", "pieces"), TEXTS, ids=[repr(text) for text, _ in TEXTS])
def test_the_models_own_tokens_frame_prefix_and_suffix(bpe: Served, text: str, pieces: Pieces) -> None:
    ids, a = tokens(bpe.toy, pieces), [bpe.toy.piece("a")]
    assert read(bpe.api, prompt=text, suffix="a") == framed(bpe.toy, ids, a)
    assert read(bpe.api, prompt="a", suffix=text) == framed(bpe.toy, a, ids)
    assert read(bpe.api, prompt=text, suffix=text) == framed(bpe.toy, ids, ids)


@pytest.mark.parametrize(("text", "pieces"), TEXTS, ids=[repr(text) for text, _ in TEXTS])
def test_the_suffix_comes_first_where_the_setting_says_so(guarded: Served, text: str, pieces: Pieces) -> None:
    toy = guarded.toy
    assert toy.fim
    ids, a = tokens(toy, pieces), toy.piece("a")
    assert read(guarded.api, prompt=text, suffix="a") == [toy.fim.suf, a, toy.fim.pre, *ids, toy.fim.mid]
    assert read(guarded.api, prompt="a", suffix=text) == [toy.fim.suf, *ids, toy.fim.pre, a, toy.fim.mid]


@pytest.mark.parametrize(("text", "pieces"), TEXTS, ids=[repr(text) for text, _ in TEXTS])
def test_a_template_frames_them_after_one_bos(templated: Served, text: str, pieces: Pieces) -> None:
    assert TEMPLATE == "<|mark|>{suffix}<|mark|>{prefix} and<|mark|>"
    toy = templated.toy
    ids, a, mark, tail = tokens(toy, pieces), toy.piece("a"), toy.mark, [toy.piece(" and"), toy.mark]
    assert read(templated.api, prompt=text, suffix="a") == [toy.bos, mark, a, mark, *ids, *tail]
    assert read(templated.api, prompt="a", suffix=text) == [toy.bos, mark, *ids, mark, a, *tail]


def test_an_empty_prefix_is_framed(bpe: Served, guarded: Served, templated: Served) -> None:
    fim = bpe.toy.fim
    assert fim
    a = bpe.toy.piece("a")
    for prompt in ("", None):
        assert read(bpe.api, prompt=prompt or "", suffix="a") == [fim.pre, fim.suf, a, fim.mid]
        assert read(guarded.api, prompt=prompt or "", suffix="a") == [fim.suf, a, fim.pre, fim.mid]
    toy = templated.toy
    wanted = [toy.bos, toy.mark, toy.piece("a"), toy.mark, toy.piece(" and"), toy.mark]
    assert read(templated.api, prompt="", suffix="a") == wanted


@pytest.mark.parametrize(
    ("template", "pieces"),
    [
        ("<s>{prefix}<|mark|>{suffix}", ["<s>", "P", "<|mark|>", "S"]),
        ("{prefix}{suffix}", ["<s>", "P", "S"]),
        ("<|mark|> {prefix} <|mark|>{suffix} <|mark|>", ["<s>", "<|mark|>", " ", "P", " ", "<|mark|>", "S", " ",
                                                         "<|mark|>"]),
        (" {suffix}\n\n{prefix}", ["<s>", " ", "S", "\n\n", "P"]),
    ],
)  # fmt: skip
def test_a_template_is_read_as_it_stands(toy_folder: Path, template: str, pieces: list[str]) -> None:
    """BOS once, also where the template names it, and no spaces but its own, even behind a special token."""
    model = LlamaModel(toy_folder / "toy-spm.gguf", Offload())
    names = {"P": "Hello", "S": " the"}
    prompt = Infill(model.vocabulary, "psm", template).prompt("Hello", " the")
    assert [toy_name(model, token) for token in prompt.tokens.tolist()] == [names.get(word, word) for word in pieces]


def toy_name(model: LlamaModel, token: int) -> str:
    return model.vocabulary.name(token).decode()


@settings(max_examples=60, deadline=None)
@given(prefix=st.text(max_size=30), suffix=st.text(min_size=1, max_size=30))
def test_any_text_is_framed_byte_for_byte(bpe: Served, templated: Served, prefix: str, suffix: str) -> None:
    toy = bpe.toy
    ids = read(bpe.api, prompt=prefix, suffix=suffix)
    assert ids == framed(toy, bpe.oracle.tokenize(prefix), bpe.oracle.tokenize(suffix))
    toy = templated.toy
    ids = read(templated.api, prompt=prefix, suffix=suffix)
    first, second, third = (at for at, token in enumerate(ids) if token == toy.mark)
    assert (ids[0], first, third) == (toy.bos, 1, len(ids) - 1)
    assert toy.printed(ids[first:second]) == suffix.encode()
    assert toy.printed(ids[second:third]) == f"{prefix} and".encode()
    assert toy.bos not in ids[1:]


def test_prompts_of_a_list_are_framed_each(bpe: Served) -> None:
    toy, a = bpe.toy, bpe.toy.piece("a")
    wanted = [framed(toy, tokens(toy, pieces), [a]) for _, pieces in TEXTS]
    answer = bpe.api.complete(
        prompt=[text for text, _ in TEXTS], suffix="a", max_tokens=6, temperature=0, return_token_ids=True
    )
    assert [choice["prompt_token_ids"] for choice in answer["choices"]] == wanted
    assert [choice["token_ids"] for choice in answer["choices"]] == [toy.greedy(ids, 6) for ids in wanted]
    assert answer["usage"]["prompt_tokens"] == sum(map(len, wanted))
    assert answer["usage"]["completion_tokens"] == 6 * len(wanted)


def test_an_empty_suffix_and_null_are_none(served: Served) -> None:
    wanted = served.api.choice(prompt="Hello", seed=1, return_token_ids=True)
    for suffix in ("", None):
        assert served.api.choice(prompt="Hello", suffix=suffix, seed=1, return_token_ids=True) == wanted
        assert served.api.choice(prompt="Hello", suffix=suffix, echo=True, logprobs=1, max_tokens=1)["logprobs"]


def test_the_prefix_loses_its_beginning_where_it_is_truncated(bpe: Served) -> None:
    toy, whole = bpe.toy, tokens(bpe.toy, HELLO)
    length = len(gap_ids(toy))
    for n_dropped in (0, 1, 2, 3):
        ids = read(bpe.api, **GAP, truncate_prompt_tokens=length - n_dropped)
        assert ids == framed(toy, whole[n_dropped:], tokens(toy, [" you"]))
    assert read(bpe.api, **GAP, truncate_prompt_tokens=length + 9) == gap_ids(toy)
    error = bpe.api.refused(**GAP, truncate_prompt_tokens=length - 4)
    assert error["param"] == "truncate_prompt_tokens"
    assert str(length - len(whole)) in error["message"]
    ids = read(bpe.api, prompt="a" * 5000, suffix="b", truncate_prompt_tokens=500)
    assert ids == framed(toy, [toy.piece("a")] * 496, [toy.piece("b")])


def test_the_frame_counts_for_the_context(bpe: Served) -> None:
    n_prefix = 512 - 3 - 2 - 4
    assert len(read(bpe.api, prompt="a" * (n_prefix + 4), suffix="bb")) == 512
    fields: Json = {"suffix": "bb", "max_tokens": 4}
    assert bpe.api.choice(prompt="a" * n_prefix, **fields)
    for stream in (False, True):
        error = bpe.api.refused(prompt="a" * (n_prefix + 1), stream=stream, **fields)
        assert error["code"] == "context_length_exceeded"
        for number in ("512", "513", "509", "4"):
            assert number in error["message"]


# What is refused


def test_a_model_without_tokens_for_gaps_says_what_it_lacks(spm: Served) -> None:
    for fields in ({}, {"stream": True}, {"prompt": ["a", "b"]}, {"echo": True}):
        error = spm.api.refused(**{"prompt": "a", "suffix": "b"} | fields)
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "suffix", None)
        assert "fill-in-the-middle tokens" in error["message"]
        assert "--fim-template" in error["message"]


def test_token_arrays_have_no_suffix(bpe: Served) -> None:
    for prompt in ([1, 2], [[1, 2], [3]]):
        for stream in (False, True):
            error = bpe.api.refused(prompt=prompt, suffix="a", stream=stream)
            assert error["param"] == "suffix"
        assert bpe.api.choices(prompt=prompt, suffix="")


def test_echoed_scores_are_refused(bpe: Served) -> None:
    for logprobs in (0, 3):
        for stream in (False, True):
            error = bpe.api.refused(**GAP, echo=True, logprobs=logprobs, stream=stream)
            assert error["param"] == "logprobs"
            assert "suffix" in error["message"]


@pytest.mark.parametrize("template", ["", "x", "<P>{prefix}", "{suffix}<M>", "{prefix}{prefix}{suffix}", "{}{}"])
def test_a_template_without_its_two_gaps_ends_the_start(toy_folder: Path, template: str) -> None:
    done = segue("serve", "--port", "0", "--model", str(toy_folder / "toy-spm.gguf"), "--fim-template", template)
    assert done.returncode == 2
    line = one_line(done.stderr)
    for word in ("fim_template", repr(template), "{prefix}", "{suffix}"):
        assert word in line


def test_an_unknown_order_ends_the_start(toy_folder: Path) -> None:
    done = segue("serve", "--port", "0", "--model", str(toy_folder / "toy-bpe.gguf"), "--fim-order", "mps")
    assert done.returncode == 2
    line = one_line(done.stderr)
    for word in ("fim_order", "mps", "command line"):
        assert word in line


def test_the_models_list_says_whether_a_suffix_is_possible(
    spm: Served, bpe: Served, guarded: Served, templated: Served
) -> None:
    for served, possible in ((spm, False), (bpe, True), (guarded, True), (templated, True)):
        (model, *_) = served.api.http.get("/v1/models").json()["data"]
        assert model["meta"]["supports_suffix"] is possible


# What becomes of it


def test_greedy_text_is_the_oracles(bpe: Served, guarded: Served, templated: Served) -> None:
    for served in (bpe, guarded, templated):
        choice = served.api.choice(**GAP, max_tokens=40, temperature=0, return_token_ids=True)
        ids = served.toy.greedy(choice["prompt_token_ids"], 40)
        wanted = served.oracle.complete(ids, 40)
        assert (choice["token_ids"], choice["text"]) == (ids, wanted.text)
        assert choice["finish_reason"] == wanted.finish_reason


@pytest.mark.parametrize("prompt", ["Hello, my", "", " é\r\n", "<|mark|>", "\x00", "  two  "])
def test_an_echo_is_the_prompt_and_the_completion(bpe: Served, templated: Served, prompt: str) -> None:
    for served in (bpe, templated):
        fields: Json = {"prompt": prompt, "suffix": " you", "seed": 5, "max_tokens": 9}
        plain = served.api.choice(**fields)
        echoed = served.api.choice(**fields, echo=True)
        assert echoed == plain | {"text": prompt + plain["text"]}
        assert read(served.api, prompt=prompt, suffix="a", echo=True)


@pytest.mark.parametrize("name", ["<|endoftext|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>",
                                  "<|file_sep|>"])  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_a_token_of_the_frame_ends_a_completion(bpe: Served, name: str, stream: bool) -> None:
    token = bpe.toy.id(name)
    forced: Json = {"logit_bias": {str(token): 100}, "max_tokens": 3, "return_token_ids": True, "logprobs": 0}
    answer: Any = bpe.api.stream(**GAP, **forced) if stream else bpe.api.complete(**GAP, **forced)
    (choice,) = answer.choices if stream else answer["choices"]
    assert (choice["text"], choice["finish_reason"], choice["token_ids"]) == ("", "stop", [token])
    assert choice["logprobs"]["tokens"] == [name]


@pytest.mark.parametrize("name", ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"])
def test_it_ends_none_without_a_suffix(bpe: Served, name: str) -> None:
    token = bpe.toy.id(name)
    choice = bpe.api.choice(prompt="a", logit_bias={str(token): 100}, max_tokens=3, return_token_ids=True)
    assert (choice["text"], choice["finish_reason"], choice["token_ids"]) == ("", "length", [token] * 3)


def test_the_tokens_of_the_frame_are_never_drawn_where_ends_are_ignored(bpe: Served) -> None:
    assert bpe.toy.fim
    choices = bpe.api.choices(**GAP, ignore_eos=True, n=16, seed=1, max_tokens=120, return_token_ids=True)
    drawn = {token for choice in choices for token in choice["token_ids"]}
    assert not drawn & {*bpe.toy.fim, *bpe.toy.eog}
    assert {choice["finish_reason"] for choice in choices} == {"length"}


@pytest.mark.parametrize("n_top", [0, 3])
def test_log_probabilities_are_those_after_the_frame(
    bpe: Served, guarded: Served, templated: Served, n_top: int
) -> None:
    for served in (bpe, guarded, templated):
        choice = served.api.choice(**GAP, seed=3, max_tokens=30, logprobs=n_top, return_token_ids=True)
        prompt = as_prompt(choice["prompt_token_ids"], GAP["prompt"])
        completed = served.oracle.complete(choice["token_ids"], 30)
        assert choice["text"] == completed.text
        check_logprobs(choice["logprobs"], served.oracle.entries(prompt, completed, n_top, echo=False))
        assert choice["logprobs"]["text_offset"][0] == len(GAP["prompt"])


def test_draws_follow_the_models_distribution(bpe: Served) -> None:
    drawn = [
        choice["token_ids"][0]
        for seed in range(4)
        for choice in bpe.api.choices(**GAP, n=128, seed=seed, max_tokens=1, return_token_ids=True)
    ]
    oracle.check_frequencies(drawn, np.exp(bpe.toy.log_probs(gap_ids(bpe.toy)[-1])))


def test_a_seed_repeats_its_choices_and_choices_differ(bpe: Served) -> None:
    fields: Json = GAP | {"n": 4, "seed": 11, "max_tokens": 12, "return_token_ids": True}
    choices = bpe.api.choices(**fields)
    assert bpe.api.choices(**fields) == choices
    assert len({choice["text"] for choice in choices}) == 4
    assert bpe.api.choices(**fields | {"seed": 12}) != choices
    both = bpe.api.choices(**fields | {"prompt": ["a", GAP["prompt"]]})
    assert [choice["text"] for choice in both[4:]] == [choice["text"] for choice in choices]


def test_the_best_of_the_candidates_is_chosen_by_what_follows_the_frame(bpe: Served) -> None:
    fields: Json = GAP | {"seed": 2, "max_tokens": 8, "return_token_ids": True}
    candidates = bpe.api.choices(**fields, n=6)
    prompt = as_prompt(gap_ids(bpe.toy), GAP["prompt"])
    means = {choice["text"]: bpe.oracle.mean_logprob(prompt, choice["token_ids"]) for choice in candidates}
    best = bpe.api.complete(**fields, n=2, best_of=6)
    ranked = sorted(means, key=lambda text: -means[text])
    assert [choice["text"] for choice in best["choices"]] == ranked[:2]
    assert best["usage"]["completion_tokens"] == sum(len(choice["token_ids"]) for choice in candidates)


def test_a_stop_string_ends_it(bpe: Served) -> None:
    ids = bpe.toy.greedy(gap_ids(bpe.toy), 60)
    text = bpe.oracle.complete(ids, 60).text
    stops = [text[20:23], text[30:33]]
    wanted = bpe.oracle.complete(ids, 60, stops)
    for fields in ({}, {"stop_token_ids": [ids[0]]}):
        choice = bpe.api.choice(**GAP, stop=stops, temperature=0, max_tokens=60, return_token_ids=True, **fields)
        if fields:
            assert (choice["text"], choice["token_ids"]) == ("", ids[:1])
        else:
            assert (choice["text"], choice["token_ids"]) == (wanted.text, wanted.ids)
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0, "max_tokens": 40},
        {"n": 3, "seed": 1},
        {"prompt": ["a", "", "é"], "seed": 2, "n": 2},
        {"echo": True, "seed": 3},
        {"logprobs": 2, "seed": 4, "max_tokens": 40},
        {"stop": ["e", " a"], "seed": 5, "max_tokens": 60, "logprobs": 0},
        {"max_tokens": 0, "echo": True},
        {"best_of": 2, "n": 2, "seed": 6, "return_token_ids": True},
        {"truncate_prompt_tokens": 5, "seed": 7, "return_token_ids": True},
    ],
    ids=str,
)
def test_a_stream_is_the_plain_answer(bpe: Served, templated: Served, fields: Json) -> None:
    for served in (bpe, templated):
        if served is templated and "truncate_prompt_tokens" in fields:
            continue
        request = GAP | {"seed": 9} | fields
        plain = served.api.complete(**request)
        streamed = served.api.stream(**request, stream_options={"include_usage": True})
        assert streamed.choices == plain["choices"]
        assert streamed.usage is not None
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert streamed.usage[key] == plain["usage"][key]
