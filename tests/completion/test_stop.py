"""Stop strings, against a search by brute force over what is drawn without them."""

import random
from typing import Any

import pytest

from tests import toys
from tests.conftest import Served
from tests.oracle import check_logprobs

HELLO = "Hello, my name is"


def check(served: Served, stop: str | list[str], **fields: Any) -> set[str]:
    """Each choice is that without stops, cut; returns how they ended."""
    request: dict[str, Any] = {"prompt": HELLO, "max_tokens": 40, "logprobs": 1, "ignore_eos": True} | fields
    stops = [stop] if isinstance(stop, str) else stop
    read = served.oracle.read(request["prompt"])
    uncut = served.api.choices(return_token_ids=True, **request)
    answer = served.api.complete(stop=stop, **request)
    n_sampled = 0
    for whole, choice in zip(uncut, answer["choices"], strict=True):
        wanted = served.oracle.complete(whole["token_ids"], request["max_tokens"], stops)
        assert choice["text"] == wanted.text
        assert choice["finish_reason"] == wanted.finish_reason
        check_logprobs(choice["logprobs"], served.oracle.entries(read, wanted, 1, echo=False))
        n_sampled += len(wanted.ids)
    assert answer["usage"]["completion_tokens"] == n_sampled
    return {choice["finish_reason"] for choice in answer["choices"]}


def greedy_text(served: Served, n: int) -> str:
    ids = served.oracle.greedy(served.oracle.read(HELLO), n)
    return served.oracle.complete(ids, n).text


def test_none_at_all(served: Served) -> None:
    wanted = served.api.choices(prompt=HELLO, seed=1)
    for stop in (None, [], "never seen", ["never", "seen"]):
        assert served.api.choices(prompt=HELLO, seed=1, stop=stop) == wanted


def test_every_piece_of_the_text_stops_before_itself(served: Served) -> None:
    """One to six characters from every place: inside tokens, across them, at their ends."""
    text = greedy_text(served, 40)
    for start in range(0, 24, 2):
        for size in (1, 2, 3, 6):
            assert check(served, text[start : start + size], temperature=0) == {"stop"}


def test_random_stops_on_random_texts(served: Served) -> None:
    rng = random.Random(5)
    seen = set()
    for seed in range(15):
        request: dict[str, Any] = {"seed": seed, "n": 4, "max_tokens": 30, "prompt": "*&$ ^"}
        texts = [c["text"] for c in served.api.choices(ignore_eos=True, **request)]
        stops = []
        for _ in range(rng.randint(1, 5)):
            text = rng.choice(texts)
            start = rng.randrange(len(text))
            stops.append(text[start : start + rng.randint(1, 4)])
        seen |= check(served, stops, **request)
    assert seen == {"stop", "length"}


def test_the_match_that_is_complete_first_wins(served: Served) -> None:
    text = greedy_text(served, 40)
    late, early, within = text[5:15], text[8:10], text[7:12]
    for stops in ([late, early], [early, late], [late, within, early]):
        choice = served.api.choice(prompt=HELLO, max_tokens=40, temperature=0, stop=stops)
        assert choice["text"] == text[:8]
        check(served, stops, temperature=0)


def test_of_two_that_are_complete_together_the_one_that_begins_first_wins(served: Served) -> None:
    text = greedy_text(served, 40)
    for stops in ([text[6:14], text[11:14]], [text[11:14], text[6:14]], [text[13], text[6:14], text[9:14]]):
        choice = served.api.choice(prompt=HELLO, max_tokens=40, temperature=0, stop=stops)
        assert choice["text"] == text[:6]
        check(served, stops, temperature=0)


def test_a_longer_stop_that_begins_with_a_shorter_one_never_matters(served: Served) -> None:
    text = greedy_text(served, 40)
    short, long = text[4:8], text[4:9]
    for stops in ([short, long], [long, short]):
        assert served.api.choice(prompt=HELLO, max_tokens=40, temperature=0, stop=stops)["text"] == text[:4]


def test_a_beginning_that_does_not_go_on_is_text(served: Served) -> None:
    text = greedy_text(served, 20)
    stops = [text[start : start + 5] + "\x00" for start in range(len(text) - 1)] + [text[-1:] + "\x00"]
    choice = served.api.choice(prompt=HELLO, max_tokens=20, temperature=0, stop=stops[:64])
    assert choice["text"] == text
    assert choice["finish_reason"] == "length"


def test_a_false_start_within_a_stop_is_found_again(served: Served) -> None:
    """aaab in aaaab: the search goes back to the second a."""
    a, b = served.toy.piece("a"), served.toy.piece("b")
    request: dict[str, Any] = {"prompt": "x", "logit_bias": {str(a): 100, str(b): 100}, "n": 16, "max_tokens": 40}
    for stops in (["aaab"], ["abab", "bb"], ["aab", "baa"]):
        for seed in range(2):
            check(served, stops, seed=seed, **request)


def test_characters_of_several_tokens(served: Served) -> None:
    for text, char in (("*", toys.EMOJI), ("&", "日")):
        prompt = [served.toy.piece(text)]
        choice = served.api.choice(prompt=prompt, max_tokens=12, temperature=0, stop=char, logprobs=0)
        assert choice["text"] == ""
        assert choice["finish_reason"] == "stop"
        assert choice["logprobs"]["tokens"] == []
        check(served, char, prompt=prompt, temperature=0, max_tokens=12)
    check(served, "€", prompt="$", temperature=0, max_tokens=12)
    check(served, "\ufffd", prompt="|", temperature=0, max_tokens=12)


def test_a_stop_at_the_last_allowed_token_is_a_stop(served: Served) -> None:
    before, text = greedy_text(served, 10), greedy_text(served, 11)
    across = text[len(before) - 3 :]
    assert text.index(across) == len(before) - 3
    assert check(served, across, temperature=0, max_tokens=10) == {"length"}
    assert check(served, across, temperature=0, max_tokens=11) == {"stop"}
    choice = served.api.choice(prompt=HELLO, max_tokens=11, temperature=0, stop=across)
    assert (choice["text"], choice["finish_reason"]) == (before[:-3], "stop")


def test_an_end_of_generation_at_the_last_allowed_token_is_a_stop_and_one_behind_is_not(served: Served) -> None:
    only = {str(served.toy.piece("!")): 100}
    assert served.api.choice(prompt="!", max_tokens=1, temperature=0)["finish_reason"] == "stop"
    choice = served.api.choice(prompt="a", max_tokens=1, temperature=0, logit_bias=only)
    assert (choice["text"], choice["finish_reason"]) == ("!", "length")


def test_the_echoed_prompt_is_not_searched(served: Served) -> None:
    request: dict[str, Any] = {"prompt": HELLO, "max_tokens": 10, "temperature": 0}
    text = greedy_text(served, 10)
    choice = served.api.choice(echo=True, stop=["my name"], **request)
    assert choice["text"] == HELLO + text
    across = HELLO[-1] + text[:1]
    assert across not in text
    assert served.api.choice(echo=True, stop=[across], **request)["text"] == HELLO + text


def test_a_stop_that_names_a_special_token_ends_at_its_id(served: Served) -> None:
    toy = served.toy
    read = served.oracle.read("#")
    after = served.oracle.greedy(read, 4)
    assert after[0] == toy.mark
    for stop in ("<|mark|>", ["x", "<|mark|>"]):
        answer = served.api.complete(prompt="#", max_tokens=4, temperature=0, stop=stop, logprobs=0, echo=True)
        (choice,) = answer["choices"]
        assert choice["text"] == "#"
        assert choice["finish_reason"] == "stop"
        assert choice["logprobs"]["tokens"][-1] == "<|mark|>"
        assert choice["logprobs"]["text_offset"][-1] == 1
        assert answer["usage"]["completion_tokens"] == 1
    unstopped = served.api.choice(prompt="#", max_tokens=4, temperature=0, logprobs=0)
    assert unstopped["logprobs"]["tokens"][0] == "<|mark|>"
    assert unstopped["finish_reason"] == "length"


def test_a_stop_that_names_a_special_token_is_also_a_text(served: Served) -> None:
    """The same characters, spelled by ordinary tokens."""
    chars = [served.toy.piece(char) for char in "<|mark|>"]
    prompt = [served.toy.piece("a"), *chars]
    choice = served.api.choice(prompt=prompt, max_tokens=0, echo=True)
    assert choice["text"].endswith("<|mark|>")
    only = {str(token): 100 for token in set(chars)}
    got = served.api.choices(prompt="a", n=8, max_tokens=60, seed=3, logit_bias=only, stop=["<", "<|mark|>"])
    assert all("<" not in choice["text"] for choice in got)


def test_limits_on_stops(served: Served, strict: Served) -> None:
    many = [f"stop {i}" for i in range(65)]
    assert served.api.choice(prompt="a", stop=many[:64])
    assert strict.api.choice(prompt="a", stop=many[:4])
    for api, n, most in ((served.api, 65, 64), (strict.api, 5, 4)):
        error = api.refused(prompt="a", stop=many[:n])
        assert error["param"] == "stop"
        assert str(n) in error["message"]
        assert str(most) in error["message"]


@pytest.mark.parametrize("stop", ["", [""], ["a", ""]])
def test_an_empty_stop_is_refused(served: Served, stop: Any) -> None:
    error = served.api.refused(prompt="a", stop=stop)
    assert error["param"] == "stop"
    assert '""' in error["message"]


def test_the_same_stop_twice_is_once(served: Served) -> None:
    text = greedy_text(served, 20)
    assert check(served, [text[4:6]] * 3, temperature=0) == {"stop"}


def test_stop_strings_may_have_4096_characters_in_all(served: Served) -> None:
    served.api.complete(prompt="a", max_tokens=1, stop=["x" * 64] * 64)
    error = served.api.refused(400, prompt="a", max_tokens=1, stop=["x" * 64] * 63 + ["x" * 65])
    assert error["param"] == "stop"
    assert "4097" in error["message"]
    assert "4096" in error["message"]
