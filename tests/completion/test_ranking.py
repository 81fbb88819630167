"""n and best_of: which choices, in which order, under which index."""

from typing import Any

import pytest

from tests import toys
from tests.conftest import Served

HELLO = "Hello, my name is"


@pytest.mark.parametrize(("n", "best_of"), [(1, 2), (1, 20), (2, 4), (3, 20), (19, 20)])
def test_the_candidates_with_the_best_mean_are_returned_best_first(served: Served, n: int, best_of: int) -> None:
    for seed in range(4):
        # "!" ends soon: many candidates have an end token, and lengths differ.
        request: dict[str, Any] = {"prompt": "a!", "max_tokens": 12, "seed": seed, "return_token_ids": True}
        read = served.oracle.read("a!")
        candidates = served.api.choices(n=best_of, logit_bias={str(served.toy.eos): -9}, **request)
        means = [served.oracle.mean_logprob(read, choice["token_ids"]) for choice in candidates]
        order = sorted(range(best_of), key=lambda k: -means[k])
        answer = served.api.complete(n=n, best_of=best_of, logit_bias={str(served.toy.eos): -9}, **request)
        got = answer["choices"]
        assert [choice["index"] for choice in got] == list(range(n))
        assert [choice["token_ids"] for choice in got] == [candidates[k]["token_ids"] for k in order[:n]]
        assert [choice["text"] for choice in got] == [candidates[k]["text"] for k in order[:n]]
        n_sampled = sum(len(choice["token_ids"]) for choice in candidates)
        assert answer["usage"]["completion_tokens"] == n_sampled
        assert answer["usage"]["prompt_tokens"] == len(read.ids)


def test_the_end_token_counts_for_the_mean(served: Served) -> None:
    """Each step draws a token again or the end, which is less likely: who leaves the end out prefers who ends."""
    toy = served.toy
    plain = [toy.piece(char) for char in toys.CHARACTERS if char not in toys.STRUCTURAL]
    token = max(plain, key=lambda token: served.oracle.logprob(token, token))
    assert served.oracle.logprob(token, token) > served.oracle.logprob(token, toy.eos) + 1
    only = {str(token): 100, str(toy.eos): 100}
    request: dict[str, Any] = {"prompt": [token], "max_tokens": 6, "logit_bias": only, "return_token_ids": True}
    read = served.oracle.read([token])
    n_ended = 0
    for seed in range(6):
        candidates = served.api.choices(n=20, seed=seed, **request)
        means = [served.oracle.mean_logprob(read, choice["token_ids"]) for choice in candidates]
        best = max(range(20), key=lambda k: (means[k], -k))
        got = served.api.choice(best_of=20, seed=seed, **request)
        assert got["token_ids"] == candidates[best]["token_ids"]
        n_ended += sum(choice["finish_reason"] == "stop" for choice in candidates)
    assert 5 < n_ended < 115


def test_tokens_behind_a_stop_count_for_the_mean_and_the_usage(served: Served) -> None:
    request: dict[str, Any] = {"prompt": HELLO, "max_tokens": 20, "ignore_eos": True}
    stops = [" ", "e"]
    read = served.oracle.read(HELLO)
    for seed in range(4):
        uncut = served.api.choices(n=10, seed=seed, return_token_ids=True, **request)
        completed = [served.oracle.complete(choice["token_ids"], 20, stops) for choice in uncut]
        means = [served.oracle.mean_logprob(read, one.ids) for one in completed]
        order = sorted(range(10), key=lambda k: -means[k])[:3]
        answer = served.api.complete(n=3, best_of=10, seed=seed, stop=stops, **request)
        assert [choice["text"] for choice in answer["choices"]] == [completed[k].text for k in order]
        assert answer["usage"]["completion_tokens"] == sum(len(one.ids) for one in completed)


def test_best_of_n_ranks_nothing(served: Served) -> None:
    request: dict[str, Any] = {"prompt": HELLO, "max_tokens": 12, "seed": 4, "logprobs": 1}
    plain = served.api.choices(n=6, **request)
    assert served.api.choices(n=6, best_of=6, **request) == plain
    assert served.api.choices(n=6, best_of=None, **request) == plain
    assert served.api.choices(n=1, best_of=1, **request) == plain[:1]


def test_indexes_are_prompt_major(served: Served) -> None:
    prompts = ["example 1", "example 2", "a"]
    for fields in ({}, {"best_of": 4}):
        choices = served.api.choices(prompt=prompts, n=2, echo=True, max_tokens=5, seed=1, **fields)
        assert [choice["index"] for choice in choices] == [0, 1, 2, 3, 4, 5]
        for choice in choices:
            assert choice["text"].startswith(prompts[choice["index"] // 2])


def test_each_prompt_of_a_list_is_ranked_for_itself(served: Served) -> None:
    request: dict[str, Any] = {"n": 2, "best_of": 5, "max_tokens": 8, "seed": 3, "logprobs": 2, "echo": True}
    alone = [served.api.choices(prompt=prompt, **request) for prompt in (HELLO, "a")]
    together = served.api.choices(prompt=[HELLO, "a"], **request)
    for index, choice in enumerate(together):
        assert choice == alone[index // 2][index % 2] | {"index": index}


def test_ranking_does_not_change_what_is_returned_of_a_choice(served: Served) -> None:
    request: dict[str, Any] = {"prompt": HELLO, "max_tokens": 12, "seed": 4, "logprobs": 3, "echo": True}
    candidates = [choice | {"index": 0} for choice in served.api.choices(n=8, **request)]
    assert served.api.choice(best_of=8, **request) in candidates


def test_a_hundred_and_twenty_eight_choices_of_two_prompts(served: Served) -> None:
    answer = served.api.complete(prompt=["a", "b"], n=128, max_tokens=3, seed=1, ignore_eos=True)
    assert len(answer["choices"]) == 256
    assert answer["usage"]["completion_tokens"] == 3 * 256
    assert len({choice["text"] for choice in answer["choices"]}) > 100
