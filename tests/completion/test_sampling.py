"""What is drawn: exactly where it is greedy, and as often as the table says where it is not."""

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from tests import toys
from tests.conftest import Served
from tests.oracle import check_frequencies

HELLO = "Hello, my name is"


def drawn(served: Served, n: int, **fields: Any) -> list[int]:
    """The first tokens of `n` choices, 128 a request, each request with its own seed."""
    ids: list[int] = []
    for seed in range(n // 128):
        choices = served.api.choices(n=128, max_tokens=1, seed=seed, return_token_ids=True, **fields)
        ids += [choice["token_ids"][0] for choice in choices]
    return ids


def ids_of(served: Served, **fields: Any) -> list[list[int]]:
    return [choice["token_ids"] for choice in served.api.choices(return_token_ids=True, **fields)]


# Greedy


def test_greedy_is_the_likeliest_token_each_time(served: Served) -> None:
    for prompt in (HELLO, "a", "é", "\n"):
        wanted = served.oracle.greedy(served.oracle.read(prompt), 100)
        for fields in ({"temperature": 0}, {"temperature": 1e-6}, {"top_k": 1}, {"top_p": 0}, {"top_p": 1e-9}):
            assert ids_of(served, prompt=prompt, max_tokens=100, **fields) == [wanted]
    assert (
        ids_of(served, prompt=HELLO, max_tokens=5, temperature=0, n=3)
        == [served.oracle.greedy(served.oracle.read(HELLO), 5)] * 3
    )
    assert ids_of(served, prompt=HELLO, max_tokens=5, min_p=1) == [served.oracle.greedy(served.oracle.read(HELLO), 5)]


@pytest.mark.parametrize(
    "penalties",
    [
        # Powers of two would make ties, on the table's grid.
        {"frequency_penalty": 1.9987},
        {"frequency_penalty": -2},
        {"frequency_penalty": 0.7513},
        {"presence_penalty": 2},
        {"presence_penalty": -2},
        {"presence_penalty": 1.2517, "frequency_penalty": 0.5031},
        {"repetition_penalty": 2},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.5},
        {"repetition_penalty": 1.5, "frequency_penalty": 0.25, "presence_penalty": -0.5},
    ],
    ids=str,
)
def test_penalties_are_exact(served: Served, penalties: dict[str, float]) -> None:
    """Over 250 tokens, which is longer than the greedy path: tokens come round again, and again."""
    short: dict[str, Any] = {name.removesuffix("_penalty"): value for name, value in penalties.items()}
    # Steps that are near certain would outweigh any penalty, so these tokens are out.
    banned = sorted(served.toy.piece(text) for text in toys.STRUCTURAL - {"=", "~"})
    bias = dict.fromkeys(banned, -100.0) | {served.toy.piece(" the"): 6.5, served.toy.piece("a"): 6.25}
    for prompt in (HELLO, " the the the the"):
        read = served.oracle.read(prompt)
        wanted = served.oracle.greedy(read, 250, bias=bias, **short)
        got = ids_of(
            served,
            prompt=prompt,
            max_tokens=250,
            temperature=0,
            logit_bias={str(token): value for token, value in bias.items()},
            **penalties,
        )
        assert got == [wanted]
        assert max(Counter(wanted).values()) > 1


def test_the_prompt_does_not_count_for_frequency_and_presence(served: Served) -> None:
    prompt = served.oracle.read(HELLO)
    first = served.oracle.greedy(prompt, 1)
    again = [*first * 50, *prompt.ids]
    for penalties in ({"frequency_penalty": 2}, {"presence_penalty": 2}):
        assert ids_of(served, prompt=again, max_tokens=1, temperature=0, **penalties) == [first]


def test_the_prompt_counts_for_repetition(served: Served) -> None:
    prompt = served.oracle.read(HELLO)
    first = served.oracle.greedy(prompt, 1)
    again = [*first, *prompt.ids]
    wanted = served.oracle.greedy(served.oracle.read(again), 3, repetition=2)
    assert wanted[:1] != first
    assert ids_of(served, prompt=again, max_tokens=3, temperature=0, repetition_penalty=2) == [wanted]


# Bias


def test_a_bias_moves_the_greedy_choice_as_it_should(served: Served) -> None:
    prompt = served.oracle.read(HELLO)
    target = served.toy.piece("z")
    row = served.toy.table[prompt.ids[-1]]
    gap = float(row.max() - row[target])
    assert 1 < gap < 90
    for value in (gap - 0.25, gap + 0.25):
        wanted = served.oracle.greedy(prompt, 12, bias={target: value})
        assert (wanted[0] == target) == (value > gap)
        got = ids_of(served, prompt=HELLO, max_tokens=12, temperature=0, logit_bias={str(target): value})
        assert got == [wanted]


def test_minus_a_hundred_bans_exactly(served: Served) -> None:
    prompt = served.oracle.read(HELLO)
    first = served.oracle.greedy(prompt, 1)[0]
    ids = drawn(served, 512, prompt=HELLO, temperature=2, logit_bias={str(first): -100})
    assert first not in ids
    check_frequencies(ids, served.oracle.distribution(prompt.ids[-1], temperature=2, bias={first: -100}))
    # Even where nothing else has any weight to speak of.
    sure = served.toy.piece("@")
    after = served.toy.piece(" and")
    ids = drawn(served, 256, prompt=[sure], logit_bias={str(after): -100})
    assert after not in ids
    check_frequencies(ids, served.oracle.distribution(sure, bias={after: -100}))


def test_a_banned_end_of_generation_lets_the_text_go_on_to_its_length(served: Served) -> None:
    toy = served.toy
    bias = {str(token): -100 for token in toy.eog}
    for way in ({"logit_bias": bias}, {"ignore_eos": True}):
        answer = served.api.complete(prompt="!", max_tokens=50, temperature=0, return_token_ids=True, **way)
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 50
        assert choice["token_ids"] == served.oracle.greedy(served.oracle.read("!"), 50, banned=toy.eog)
        many = served.api.choices(prompt="!?", max_tokens=40, seed=3, n=32, return_token_ids=True, **way)
        assert all(choice["finish_reason"] == "length" for choice in many)
        assert not toy.eog & {token for choice in many for token in choice["token_ids"]}


def test_a_hundred_is_the_only_choice(served: Served) -> None:
    u = served.toy.piece("u")
    only = ids_of(served, prompt=HELLO, max_tokens=20, temperature=2, seed=1, n=4, logit_bias={str(u): 100})
    assert only == [[u] * 20] * 4
    with_others = {str(u): 100, str(served.toy.piece("v")): 99.9, str(served.toy.piece("@")): 50}
    assert ids_of(served, prompt="@", max_tokens=9, temperature=2, seed=1, logit_bias=with_others) == [[u] * 9]


def test_several_hundreds_share_the_choice_by_their_own_odds(served: Served) -> None:
    some = [served.toy.piece(char) for char in "uvwxyz"]
    before = served.toy.piece("a")
    ids = drawn(served, 512, prompt=[before], logit_bias={str(token): 100 for token in some})
    assert set(ids) <= set(some)
    check_frequencies(ids, served.oracle.distribution(before, bias=dict.fromkeys(some, 100.0)))


def test_three_hundred_biases(served: Served) -> None:
    bias = {token: (token % 7) - 3.5 for token in range(300)}
    prompt = served.oracle.read(HELLO)
    sent = {str(token): value for token, value in bias.items()}
    wanted = served.oracle.greedy(prompt, 30, bias=bias)
    assert ids_of(served, prompt=HELLO, max_tokens=30, temperature=0, logit_bias=sent) == [wanted]


def test_a_bias_that_leaves_nothing_is_refused(served: Served) -> None:
    everything = {str(token): -100 for token in range(served.toy.n_vocab)}
    assert served.api.refused(prompt="a", logit_bias=everything)["param"] == "logit_bias"
    ends = {str(token): 100 for token in served.toy.eog}
    assert served.api.refused(prompt="a", logit_bias=ends, ignore_eos=True)["param"] == "logit_bias"


# Frequencies


@pytest.mark.parametrize(
    "way",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2},
        {"temperature": 1.3, "top_p": 0.8},
        {"top_p": 0.5},
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"top_k": 2},
        {"top_k": 10},
        {"top_k": 10, "top_p": 0.7},
        {"min_p": 0.1},
        {"min_p": 0.02, "temperature": 1.5},
        {"top_k": 30, "top_p": 0.9, "min_p": 0.05, "temperature": 1.2},
    ],
    ids=str,
)
def test_draws_are_as_frequent_as_the_model_says(served: Served, way: dict[str, Any]) -> None:
    for text in ("a", "%"):
        before = served.toy.piece(text)
        if text == toys.UNIFORM and way:
            continue  # ties: which of them top_k keeps is nobody's business
        ids = drawn(served, 2560, prompt=[before], **way)
        check_frequencies(ids, served.oracle.distribution(before, **way))


def test_draws_along_a_text_are_as_frequent_as_the_model_says(served: Served) -> None:
    """Not only first tokens: all pairs of neighbours in long texts, by the first of the two."""
    after: dict[int, list[int]] = {}
    for seed in range(6):
        for ids in ids_of(served, prompt="a", n=32, max_tokens=60, seed=seed, ignore_eos=True):
            for before, token in pairwise(ids):
                after.setdefault(before, []).append(token)
    often = sorted(after, key=lambda token: -len(after[token]))[:12]
    for before in often:
        probs = served.oracle.distribution(before, banned=served.toy.eog)
        if probs.max() < 0.9:
            check_frequencies(after[before], probs)
    assert len(after[often[-1]]) > 100


def test_nothing_is_cut_off_by_default(served: Served) -> None:
    ids = drawn(served, 1280, prompt="%", temperature=2)
    assert len(set(ids)) > 0.85 * served.toy.n_vocab


# Seeds


def test_the_same_seed_draws_the_same_and_another_other(served: Served) -> None:
    request: dict[str, Any] = {"prompt": HELLO, "max_tokens": 20, "n": 3}
    seen = []
    for seed in (0, 1, 42, -2, -(2**63), 2**63 - 1, 2**32, 2**32 + 1):
        first = ids_of(served, seed=seed, **request)
        assert ids_of(served, seed=seed, **request) == first
        seen += first
    assert len({tuple(ids) for ids in seen}) == len(seen)


def test_without_a_seed_each_answer_is_fresh(served: Served) -> None:
    request: dict[str, Any] = {"prompt": HELLO, "max_tokens": 30, "n": 2}
    answers = [ids_of(served, **request, **way) for way in ({}, {"seed": None}, {"seed": -1}, {"seed": -1}, {})]
    assert len({tuple(ids) for answer in answers for ids in answer}) == 2 * len(answers)


def test_a_choice_depends_on_seed_and_number_alone(served: Served) -> None:
    request: dict[str, Any] = {"max_tokens": 20, "seed": 6}
    four = ids_of(served, prompt=HELLO, n=4, **request)
    assert len({tuple(ids) for ids in four}) == 4
    for n in (1, 2, 3):
        assert ids_of(served, prompt=HELLO, n=n, **request) == four[:n]
    alone = ids_of(served, prompt="x", **request)
    assert ids_of(served, prompt=["x", "x"], **request) == alone * 2
    assert ids_of(served, prompt=["Hello", "x", HELLO], **request)[1:] == alone + four[:1]
    listed = ids_of(served, prompt=["x", HELLO], n=4, **request)
    assert listed[4:] == four


def test_one_token_more_does_not_change_those_before(served: Served) -> None:
    long = ids_of(served, prompt=HELLO, seed=2, max_tokens=40, ignore_eos=True)[0]
    for max_tokens in (1, 2, 17, 39):
        assert ids_of(served, prompt=HELLO, seed=2, max_tokens=max_tokens, ignore_eos=True) == [long[:max_tokens]]


# Ends


def test_min_tokens_puts_the_end_off(served: Served) -> None:
    toy = served.toy
    read = served.oracle.read("!")
    for min_tokens in (1, 5, 20):
        (ids,) = ids_of(served, prompt="!", min_tokens=min_tokens, max_tokens=20, temperature=0)
        assert ids == served.oracle.greedy(read, 20, min_tokens=min_tokens)
        many = ids_of(served, prompt="!", min_tokens=min_tokens, max_tokens=20, n=32, seed=1)
        assert all(len(ids) >= min_tokens for ids in many)
        assert all(not toy.eog & set(ids[:min_tokens]) for ids in many)
    ids = [toy.piece("a"), toy.piece("!")]
    stopped = served.api.choice(prompt=ids[:1], logit_bias={str(ids[1]): 100}, min_tokens=2, max_tokens=5)
    assert stopped["text"] == "!" * 5
    shortest = {str(ids[1]): 100, str(toy.eos): 100}
    (drawn_ids,) = ids_of(served, prompt=ids[:1], logit_bias=shortest, min_tokens=2, max_tokens=5, temperature=0)
    assert drawn_ids == [ids[1], ids[1], toy.eos]


def test_min_tokens_holds_against_stops_and_stop_tokens(served: Served) -> None:
    a, b = served.toy.piece("a"), served.toy.piece("b")
    only: dict[str, Any] = {"prompt": "b", "logit_bias": {str(a): 100}, "max_tokens": 8}
    for min_tokens in (0, 3, 7):
        choice = served.api.choice(stop="a", min_tokens=min_tokens, return_token_ids=True, **only)
        assert choice["finish_reason"] == "stop"
        assert choice["text"] == "a" * min_tokens
    both: dict[str, Any] = {"prompt": "b", "logit_bias": {str(a): 100, str(b): 100}, "max_tokens": 8}
    row = served.toy.table[a]
    early, late = (a, b) if row[a] > row[b] else (b, a)
    (ids,) = ids_of(served, stop_token_ids=[early], min_tokens=4, temperature=0, **both)
    assert ids[:4] == [late] * 4
    assert early not in ids[:4]


def test_stop_token_ids_end_with_stop_and_print_nothing(served: Served) -> None:
    prompt = served.oracle.read(HELLO)
    path = served.oracle.greedy(prompt, 10)
    for at in (0, 4, 9):
        answer = served.api.complete(
            prompt=HELLO, max_tokens=10, temperature=0, stop_token_ids=[path[at]], logprobs=0, return_token_ids=True
        )
        (choice,) = answer["choices"]
        wanted = served.oracle.complete(path, 10, ends=[path[at]])
        assert choice["finish_reason"] == "stop" == wanted.finish_reason
        assert choice["text"] == wanted.text
        assert choice["token_ids"] == path[: at + 1]
        assert len(choice["logprobs"]["tokens"]) == at + 1
        assert answer["usage"]["completion_tokens"] == at + 1


@pytest.mark.parametrize("penalty", [1e-300, 1e-46, 1e-40])
@pytest.mark.parametrize("temperature", [0, 1])
def test_a_tiny_repetition_penalty_leaves_a_distribution(served: Served, penalty: float, temperature: float) -> None:
    answer = served.api.complete(prompt="hello", max_tokens=4, repetition_penalty=penalty, temperature=temperature)
    assert answer["usage"]["completion_tokens"] >= 1
