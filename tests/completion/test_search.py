"""Insertion by search, on a toy whose every score can be computed: the model is a table, its text a chain of tokens."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests import toys
from tests.oracle import Tokenizer
from tests.servers import Api, Json, running
from tests.toys import Toy

N_CANDIDATES = 8
"""What a search samples at least."""
SUFFIXES = ["hello", ".", "the", "Z", "name is 5"]


class Searching:
    """toy-spm, which has no fill-in-the-middle tokens, behind a server that may search."""

    def __init__(self, toy: Toy, api: Api, tokenizer: Tokenizer) -> None:
        self.toy = toy
        self.api = api
        self.tokenizer = tokenizer

    def plain(self, text: str) -> list[int]:
        """Tokens of a text, without the space that the tokenizer would put before it: behind a letter that is cut."""
        return self.tokenizer("Q" + text)[len(self.tokenizer("Q")) :]

    def score(self, before: int, tokens: list[int]) -> float:
        """log p(tokens), the first after `before`."""
        chain = [before, *tokens]
        return float(sum(self.toy.log_probs(a)[b] for a, b in pairwise(chain)))

    def candidates(self, **fields: object) -> list[Json]:
        """What the same request draws when it is only continued."""
        body = fields | {"n": N_CANDIDATES, "logprobs": 0, "return_token_ids": True}
        choices: list[Json] = self.api.complete(**body)["choices"]
        return choices

    def cuts(self, prompt: str, suffix: str, **fields: object) -> dict[str, float]:
        """Every text that some candidate begins with, and its score by the table."""
        last = self.tokenizer(prompt)[-1]
        scores: dict[str, float] = {}
        for candidate in self.candidates(prompt=prompt, **fields):
            ids = [token for token in candidate["token_ids"] if token not in self.toy.eog]
            for k in range(1, len(ids) + 1):
                try:
                    text = b"".join(self.toy.pieces[token] for token in ids[:k]).decode()
                except UnicodeDecodeError:
                    continue
                if text:
                    scores[text] = self.score(last, ids[:k] + self.plain(suffix))
        return scores


@pytest.fixture(scope="module")
def searching(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Searching]:
    toy = toys.spm()
    path = toy_folder / f"{toy.name}.gguf"
    tokenizer = Tokenizer(path)
    flags = ("--model", str(path), "--threads", "1", "--insertion", "search", "--ctx-size", "512")
    with running(tmp_path_factory.mktemp("search") / "log", *flags) as server:
        api = Api(server.url)
        yield Searching(toy, api, tokenizer)
        api.http.close()
    tokenizer.close()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_is_inserted_is_the_likeliest_cut_of_all_candidates(searching: Searching, suffix: str, seed: int) -> None:
    fields = {"seed": seed, "max_tokens": 6}
    scores = searching.cuts("my name", suffix, **fields)
    choice = searching.api.complete(prompt="my name", suffix=suffix, **fields)["choices"][0]
    best = max(scores.values())
    # The suffix's first token is among the likeliest twenty after some cut, or all cuts are as good as each other.
    assert scores[choice["text"]] == pytest.approx(best, abs=1e-4)
    assert choice["finish_reason"] == "stop"


def test_choices_come_best_first_and_differ(searching: Searching) -> None:
    fields = {"seed": 5, "max_tokens": 6}
    scores = searching.cuts("my name", "the", **fields)
    choices = searching.api.complete(prompt="my name", suffix="the", n=4, **fields)["choices"]
    texts = [choice["text"] for choice in choices]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert len(set(texts)) == 4
    found = [scores[text] for text in texts]
    assert found == sorted(found, reverse=True)


def test_log_probabilities_are_those_of_the_inserted_tokens(searching: Searching) -> None:
    choice = searching.api.complete(
        prompt="my name", suffix="the", seed=3, max_tokens=6, logprobs=2, return_token_ids=True
    )["choices"][0]
    chain = [searching.tokenizer("my name")[-1], *choice["token_ids"]]
    wanted = [searching.toy.log_probs(a)[b] for a, b in pairwise(chain)]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(wanted, abs=1e-5)
    assert all(len(entries) in (2, 3) for entries in choice["logprobs"]["top_logprobs"])


def test_a_stream_of_an_insertion_is_the_plain_answer(searching: Searching) -> None:
    body = {"prompt": ["my name", "the"], "suffix": ".", "seed": 9, "max_tokens": 5, "n": 2, "logprobs": 1}
    plain = searching.api.complete(**body)
    streamed = searching.api.stream(**body, stream_options={"include_usage": True})
    assert streamed.choices == plain["choices"]
    assert streamed.usage is not None
    assert streamed.usage["completion_tokens"] == plain["usage"]["completion_tokens"]


def test_usage_counts_prefix_and_suffix_and_all_that_was_drawn(searching: Searching) -> None:
    usage = searching.api.complete(prompt="my name", suffix="the", seed=3, max_tokens=6, ignore_eos=True)["usage"]
    assert usage["prompt_tokens"] == 1 + len(searching.tokenizer("my name")) + len(searching.plain("the"))
    assert usage["completion_tokens"] == N_CANDIDATES * 6


def test_nothing_is_inserted_where_no_token_may_be(searching: Searching) -> None:
    choice = searching.api.complete(prompt="my name", suffix="the", max_tokens=0)["choices"][0]
    assert choice["text"] == ""


def test_the_model_list_says_that_a_suffix_is_taken(searching: Searching) -> None:
    assert searching.api.http.get("/v1/models").json()["data"][0]["meta"]["supports_suffix"] is True
