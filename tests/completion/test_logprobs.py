"""The four arrays, against float64: every entry, its text, its offset and its number."""

import math
from itertools import product
from typing import Any

import pytest

from tests import toys
from tests.conftest import Served
from tests.oracle import Completed, check_logprobs, close

HELLO = "Hello, my name is"
NOTHING = Completed("", [], 0, "length")
PROMPTS = [HELLO, "日本語🙂: Café", "*", "a<|mark|> b", "", "&", "  the", "é\x00\n\n", "$"]


def check(served: Served, prompt: str | list[int], **fields: Any) -> None:
    """One seeded answer at temperature 1 unless said otherwise: all that can be computed of it."""
    request: dict[str, Any] = {"max_tokens": 24, "seed": 3, "echo": False} | fields
    answer = served.api.complete(prompt=prompt, return_token_ids=True, **request)
    read = served.oracle.read(prompt)
    n_sampled = 0
    for choice in answer["choices"]:
        ids = choice["token_ids"]
        wanted = served.oracle.complete(ids, request["max_tokens"], ends=request.get("stop_token_ids", ()))
        echoed = read.text if request["echo"] else ""
        assert choice["text"] == echoed + wanted.text
        assert choice["finish_reason"] == wanted.finish_reason
        assert ids == wanted.ids
        n_sampled += len(ids)
        if request.get("logprobs") is None:
            assert choice["logprobs"] is None
        else:
            entries = served.oracle.entries(read, wanted, request["logprobs"], request["echo"])
            check_logprobs(choice["logprobs"], entries)
    assert answer["usage"]["completion_tokens"] == n_sampled
    assert answer["usage"]["prompt_tokens"] == len(read.ids)


@pytest.mark.parametrize(("echo", "logprobs"), list(product([False, True], [None, 0, 1, 5, 20])))
def test_all_arrays_for_every_kind_of_prompt(served: Served, echo: bool, logprobs: int | None) -> None:
    for prompt in PROMPTS:
        check(served, prompt, echo=echo, logprobs=logprobs, n=4)
        if ids := served.oracle.tokenize(prompt):
            check(served, ids, echo=echo, logprobs=logprobs, n=4)


def test_arrays_over_many_draws(served: Served) -> None:
    """Long draws at temperature 1 and 2: stray bytes, split characters, special tokens, ends."""
    for seed, temperature in product(range(6), (1, 2)):
        fields: dict[str, Any] = {"max_tokens": 60, "ignore_eos": seed % 2 == 0, "temperature": temperature}
        check(served, "*&$^|", echo=True, logprobs=3, n=16, seed=seed, **fields)


def test_every_token_alone_as_a_prompt(served: Served) -> None:
    """All ids of the vocabulary, each followed by each kind of character: entries, text and offsets of the echo."""
    toy = served.toy
    behind = [toy.piece("a"), toy.byte(0x82), toy.mark]
    prompts = [[token, other] for token in range(toy.n_vocab) for other in behind]
    choices = served.api.choices(prompt=prompts, max_tokens=0, echo=True, logprobs=1)
    for prompt, choice in zip(prompts, choices, strict=True):
        read = served.oracle.read(prompt)
        assert choice["text"] == read.text, prompt
        check_logprobs(choice["logprobs"], served.oracle.entries(read, NOTHING, 1, echo=True))


def test_a_special_token_between_broken_bytes_begins_behind_them(served: Served) -> None:
    """E2 and "a" are no character together: U+FFFD is at 0, and the special token behind it at 1."""
    toy = served.toy
    ids = [toy.piece("b"), toy.byte(0xE2), toy.mark, toy.piece("a")]
    choice = served.api.choice(prompt=ids, max_tokens=0, echo=True, logprobs=0)
    assert choice["text"] == "b\ufffda"
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 2]
    ids = [toy.piece("b"), toy.byte(0xE2), toy.mark, toy.byte(0x82), toy.byte(0xAC), toy.piece("a")]
    choice = served.api.choice(prompt=ids, max_tokens=0, echo=True, logprobs=0)
    assert choice["text"] == "b€a"
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 1, 1, 2]


def test_echoed_entries_join_to_the_string(served: Served) -> None:
    for text in (HELLO, " leading", "a<|mark|>b<|mark|> c", "  the\n\n", "Hello Hello  Hello"):
        for max_tokens in (0, 6):
            choice = served.api.choice(prompt=text, echo=True, logprobs=0, max_tokens=max_tokens, temperature=0)
            assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
            assert choice["text"].startswith(text)


def test_a_token_array_has_one_entry_an_id_and_a_string_none_for_the_servers_bos(served: Served) -> None:
    toy = served.toy
    ids = served.oracle.tokenize(HELLO)
    start = toy.eos if toy.bos is None else toy.bos
    for sent in (ids, [start, *ids], [start], [start, start], ids[:1]):
        choice = served.api.choice(prompt=sent, echo=True, logprobs=1, max_tokens=1, temperature=0)
        assert len(choice["logprobs"]["tokens"]) == len(sent) + 1
    both = served.api.choices(prompt=[ids[:3], ids[:2]], echo=True, logprobs=1, max_tokens=1, temperature=0)
    assert [len(choice["logprobs"]["tokens"]) for choice in both] == [4, 3]
    answer = served.api.complete(prompt=HELLO, echo=True, logprobs=1, max_tokens=1, temperature=0)
    n_added = answer["usage"]["prompt_tokens"] - len(ids)
    assert n_added == (toy.bos is not None)
    assert len(answer["choices"][0]["logprobs"]["tokens"]) == len(ids) + 1


def test_only_the_first_echoed_entry_is_null(served: Served) -> None:
    for prompt in (HELLO, served.oracle.read(HELLO).ids, ["a", HELLO]):
        for choice in served.api.choices(prompt=prompt, echo=True, logprobs=2, max_tokens=3, seed=1):
            logprobs = choice["logprobs"]
            assert [value is None for value in logprobs["token_logprobs"]] == [
                i == 0 for i in range(len(logprobs["tokens"]))
            ]
            assert [value is None for value in logprobs["top_logprobs"]] == [
                i == 0 for i in range(len(logprobs["tokens"]))
            ]
    unechoed = served.api.choice(prompt=HELLO, logprobs=2, max_tokens=3, seed=1)["logprobs"]
    assert None not in unechoed["token_logprobs"] + unechoed["top_logprobs"]


def test_the_likelier_of_two_tokens_with_one_text_keeps_the_key(spm: Served) -> None:
    """The piece "A" and the byte <0x41> print alike; after "=" the piece is likelier, after "~" the byte."""
    toy = spm.toy
    twins = toy.piece("A"), toy.byte(0x41)
    for text, (first, second) in zip(toys.TWINS, (twins, twins[::-1]), strict=True):
        before = toy.piece(text)
        row = toy.log_probs(before)
        for token in twins:
            choice = spm.api.choice(
                prompt=[before], logprobs=2, max_tokens=1, temperature=0, logit_bias={str(token): 100}
            )
            logprobs = choice["logprobs"]
            assert logprobs["tokens"] == ["A"]
            assert logprobs["token_logprobs"] == [close(float(row[token]))]
            assert logprobs["top_logprobs"][0] == {"A": close(float(row[first]))}
            assert row[first] > row[second]
            scored = spm.api.choice(prompt=[before, token], logprobs=0, max_tokens=0, echo=True)["logprobs"]
            assert scored["token_logprobs"][1] == close(float(row[token]))
            assert scored["top_logprobs"][1] == {"A": close(float(row[token]))}


def test_exactly_as_many_top_entries_as_asked_for_the_token_among_them(served: Served) -> None:
    for n_top in (1, 2, 5, 20):
        choice = served.api.choice(prompt=HELLO, logprobs=n_top, max_tokens=20, temperature=0)
        for token, top in zip(choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"], strict=True):
            assert len(top) == n_top
            assert max(top, key=lambda name: top[name]) == token


def test_a_token_that_is_no_text_is_written_as_its_bytes(served: Served) -> None:
    toy = served.toy
    choice = served.api.choice(prompt=[toy.piece("*")], logprobs=1, max_tokens=5, temperature=0)
    assert choice["text"].startswith(toys.EMOJI)
    tokens = choice["logprobs"]["tokens"]
    assert tokens[:4] == [r"bytes:\xf0", r"bytes:\x9f", r"bytes:\x98", r"bytes:\x80"]
    assert choice["logprobs"]["text_offset"][:5] == [1, 1, 1, 1, 2]
    stray = served.api.choice(prompt=[toy.piece("|")], logprobs=1, max_tokens=1, temperature=0)
    assert stray["text"] == "\ufffd"
    assert stray["logprobs"]["tokens"] == [r"bytes:\xff"]


def test_a_token_that_ends_within_a_character_keeps_its_space(bpe: Served) -> None:
    choice = bpe.api.choice(prompt="$", logprobs=1, max_tokens=3, temperature=0)
    assert choice["text"].startswith(" €")
    assert choice["logprobs"]["tokens"][:2] == [r"bytes:\x20\xe2\x82", r"bytes:\xac"]
    assert choice["logprobs"]["text_offset"] == [1, 2, 3]


def test_a_character_that_max_tokens_cuts_is_dropped_and_its_tokens_are_counted(served: Served) -> None:
    toy = served.toy
    for text, size in (("*", 4), ("&", 3)):
        for max_tokens in range(1, size):
            answer = served.api.complete(prompt=[toy.piece(text)], logprobs=0, max_tokens=max_tokens, temperature=0)
            (choice,) = answer["choices"]
            assert choice["text"] == ""
            assert choice["finish_reason"] == "length"
            assert choice["logprobs"]["text_offset"] == [1] * max_tokens
            assert answer["usage"]["completion_tokens"] == max_tokens


def test_offsets_count_code_points_from_the_start_of_the_prompt(served: Served) -> None:
    for prompt, length in (("say hi, one word", 16), ("日本語🙂:", 5), ("e\u0301👩\u200d👧", 5), ("", 0)):
        for echo in (False, True):
            choice = served.api.choice(prompt=prompt, logprobs=0, max_tokens=3, temperature=0, echo=echo)
            offsets = choice["logprobs"]["text_offset"]
            assert offsets[-3] == length
            assert offsets == sorted(offsets)
            text = choice["text"] if echo else prompt + choice["text"]
            for token, offset in zip(choice["logprobs"]["tokens"], offsets, strict=True):
                if not token.startswith("bytes:"):
                    assert text[offset : offset + len(token)] == token


def test_the_end_of_generation_has_an_entry_by_its_name(served: Served) -> None:
    toy = served.toy
    for text in (toys.ENDING, toys.TURN):
        before = toy.piece(text)
        end = int(toy.table[before].argmax())
        answer = served.api.complete(prompt=[before], logprobs=1, max_tokens=5, temperature=0)
        (choice,) = answer["choices"]
        assert choice["text"] == ""
        assert choice["finish_reason"] == "stop"
        assert choice["logprobs"]["tokens"] == [toy.names[end]]
        assert choice["logprobs"]["token_logprobs"] == [close(served.oracle.logprob(before, end))]
        assert choice["logprobs"]["text_offset"] == [1]
        assert answer["usage"]["completion_tokens"] == 1


def test_a_special_token_that_ends_nothing_prints_nothing_and_has_an_entry(served: Served) -> None:
    toy = served.toy
    choice = served.api.choice(prompt=[toy.piece("#")], logprobs=0, max_tokens=3, temperature=0)
    ids = toy.greedy([toy.piece("#")], 3)
    assert ids[0] == toy.mark
    assert choice["text"] == served.oracle.complete(ids, 3).text
    assert choice["logprobs"]["tokens"][0] == "<|mark|>"
    assert choice["logprobs"]["text_offset"][:2] == [1, 1]


def test_scores_do_not_depend_on_how_tokens_are_drawn(served: Served) -> None:
    ids = served.oracle.read(HELLO).ids
    wanted = served.api.choice(prompt=ids, echo=True, logprobs=5, max_tokens=0)["logprobs"]
    ways: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 1.7, "top_p": 0.1},
        {"frequency_penalty": 2, "presence_penalty": -2, "repetition_penalty": 1.7},
        {"logit_bias": {str(ids[-1]): -100, "300": 50}},
        {"top_k": 1},
        {"min_p": 0.5, "seed": 8},
        {"ignore_eos": True, "min_tokens": 1},
    ]
    for way in ways:
        got = served.api.choice(prompt=ids, echo=True, logprobs=5, max_tokens=1, **way)["logprobs"]
        for key, values in wanted.items():
            assert got[key][:-1] == values
        # The sampled token as well: its number is the model's own.
        row = served.toy.log_probs(ids[-1])
        assert got["token_logprobs"][-1] in [close(float(value)) for value in row]
        assert max(got["top_logprobs"][-1].values()) == close(float(row.max()))
    banned = served.api.choice(prompt=ids, logprobs=5, max_tokens=3, logit_bias={"300": -100}, temperature=0)
    assert all(math.isfinite(value) for top in banned["logprobs"]["top_logprobs"] for value in top.values())


def test_scoring_alone_generates_nothing(served: Served) -> None:
    ids = served.oracle.read(HELLO).ids
    for prompt in (HELLO, ids):
        read = served.oracle.read(prompt)
        answer = served.api.complete(prompt=prompt, echo=True, logprobs=3, max_tokens=0)
        (choice,) = answer["choices"]
        assert choice["text"] == read.text
        assert choice["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 0
        assert answer["usage"]["prompt_tokens"] == len(read.ids)
        check_logprobs(choice["logprobs"], served.oracle.entries(read, NOTHING, 3, echo=True))
        for fields, text in (({}, ""), ({"echo": True}, read.text), ({"n": 3, "best_of": 5}, "")):
            for choice in served.api.choices(prompt=prompt, max_tokens=0, **fields):
                assert choice["text"] == text
                assert choice["logprobs"] is None
                assert choice["finish_reason"] == "length"
        unechoed = served.api.choice(prompt=prompt, max_tokens=0, logprobs=1)
        assert unechoed["logprobs"] == {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def test_a_long_prompt_is_scored_entry_by_entry(spm: Served) -> None:
    """Longer than a batch, and than the rows that one decode may have."""
    text = "Hello, my name is the time of it.\n" * 60
    read = spm.oracle.read(text)
    assert len(read.ids) > 600
    choice = spm.api.choice(prompt=text, echo=True, logprobs=2, max_tokens=1, temperature=0)
    wanted = spm.oracle.complete(spm.oracle.greedy(read, 1), 1)
    check_logprobs(choice["logprobs"], spm.oracle.entries(read, wanted, 2, echo=True))


def test_a_long_prompt_is_scored_the_same_a_second_time(served: Served) -> None:
    request: dict[str, Any] = {"prompt": "my name is " * 30, "echo": True, "logprobs": 4, "max_tokens": 2, "seed": 5}
    assert served.api.choices(**request) == served.api.choices(**request)


def test_choices_of_one_prompt_echo_the_same_scores(served: Served) -> None:
    choices = served.api.choices(prompt=HELLO, echo=True, logprobs=2, n=4, max_tokens=2, temperature=2, seed=9)
    n_echoed = len(served.oracle.read(HELLO).entries)
    echoes = [{key: values[:n_echoed] for key, values in choice["logprobs"].items()} for choice in choices]
    assert echoes == [echoes[0]] * 4


def test_uniform_row_scores_are_all_alike(served: Served) -> None:
    token = served.toy.piece(toys.UNIFORM)
    top = served.api.choice(prompt=[token], logprobs=5, max_tokens=1, seed=2)["logprobs"]["top_logprobs"][0]
    assert all(value == close(-math.log(served.toy.n_vocab)) for value in top.values())


def test_what_is_returned_with_logprobs_is_what_is_returned_without(served: Served) -> None:
    for seed in range(4):
        request: dict[str, Any] = {"prompt": "*&$", "max_tokens": 40, "seed": seed, "ignore_eos": True, "n": 4}
        plain = served.api.choices(**request)
        for extra in ({"logprobs": 0}, {"logprobs": 7}, {"return_token_ids": True}, {"best_of": 4}, {"echo": True}):
            texts = [choice["text"].removeprefix("*&$" if "echo" in extra else "")
                     for choice in served.api.choices(**request, **extra)]  # fmt: skip
            assert texts == [choice["text"] for choice in plain]
