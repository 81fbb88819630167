"""Prompt and completion against the context."""

from typing import cast

import pytest

from app.completion import service
from app.completion.checks import Rules
from app.completion.infill import Infill
from app.engine.backend import Vocabulary
from app.engine.engine import Engine
from app.errors import ContextLengthExceeded
from app.schemas import CompletionRequest
from tests.conftest import Served

N_CONTEXT = 512
"""Of the `bpe` fixture."""


def test_prompt_and_completion_may_fill_the_context_exactly(bpe: Served) -> None:
    ids = [bpe.toy.piece("a")] * (N_CONTEXT - 12)
    for echo in (False, True):
        answer = bpe.api.complete(prompt=ids, max_tokens=12, temperature=0, echo=echo)
        assert answer["usage"]["completion_tokens"] == 12
        assert answer["choices"][0]["finish_reason"] == "length"
    full = ids + [bpe.toy.piece("a")] * 12
    scored = bpe.api.choice(prompt=full, max_tokens=0, echo=True, logprobs=0)
    assert len(scored["logprobs"]["tokens"]) == N_CONTEXT
    long = bpe.api.complete(prompt="a", max_tokens=N_CONTEXT - 1, temperature=0)
    assert long["usage"]["completion_tokens"] == N_CONTEXT - 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("n_prompt", "max_tokens"), [(500, 13), (500, 100), (513, 0), (1024, 16), (1, 512), (1, 10**9)]
)
def test_one_more_token_is_refused_with_the_numbers(bpe: Served, stream: bool, n_prompt: int, max_tokens: int) -> None:
    ids = [bpe.toy.piece("a")] * n_prompt
    error = bpe.api.refused(prompt=ids, max_tokens=max_tokens, stream=stream)
    assert error["code"] == "context_length_exceeded"
    assert error["type"] == "invalid_request_error"
    assert error["param"] in {"prompt", "max_tokens"}
    for number in (N_CONTEXT, n_prompt, max_tokens):
        assert str(number) in error["message"]


def test_one_too_long_prompt_refuses_the_list(bpe: Served) -> None:
    error = bpe.api.refused(prompt=[[1], [1] * 600], max_tokens=1)
    assert error["code"] == "context_length_exceeded"


def test_the_context_counts_a_bos_that_the_server_adds(strict: Served) -> None:
    n_context = strict.api.http.get("/v1/models").json()["data"][0]["max_model_len"]
    text = "a" * (n_context - 2)
    n_tokens = len(strict.oracle.read(text).ids)
    room = n_context - n_tokens
    assert strict.api.complete(prompt=text, max_tokens=room, temperature=0)["usage"]["total_tokens"] == n_context
    error = strict.api.refused(prompt=text, max_tokens=room + 1)
    assert error["code"] == "context_length_exceeded"
    assert str(n_tokens) in error["message"]


class Mute:
    """A vocabulary that has a size, and is asked for nothing else."""

    n_tokens = 10


@pytest.mark.parametrize("last", [None, 9])
def test_ids_beyond_the_context_are_refused_before_they_are_made_text(last: int | None) -> None:
    vocabulary, served = cast(Vocabulary, Mute()), service.Served(("toy",), "fp_0", 8)
    asked = service.CompletionService(cast(Engine, None), vocabulary, served, Rules(), Infill(vocabulary))
    with pytest.raises(ContextLengthExceeded, match=r"12: 9 in the prompt, 3 in the completion") as refused:
        asked.prepare(CompletionRequest(prompt=[1] * 9, max_tokens=3, truncate_prompt_tokens=last))
    assert refused.value.param == "prompt"


class Deaf(Mute):
    """A vocabulary of long tokens, into which no text is cut."""

    longest = 5


@pytest.mark.parametrize(("prompt", "suffix"), [("ä" * 41, None), ("a" * 20, "a" * 21), ("a" * 41, "a")])
def test_a_text_beyond_the_context_is_refused_before_it_is_cut_into_tokens(prompt: str, suffix: str | None) -> None:
    vocabulary, served = cast(Vocabulary, Deaf()), service.Served(("toy",), "fp_0", 8)
    asked = service.CompletionService(cast(Engine, None), vocabulary, served, Rules(), Infill(vocabulary))
    with pytest.raises(ContextLengthExceeded, match=r"8 tokens.* 5 bytes.* 4\d characters") as refused:
        asked.prepare(CompletionRequest(prompt=prompt, suffix=suffix))
    assert refused.value.param == ("suffix" if len(suffix or "") > len(prompt) else "prompt")


def test_a_text_of_the_longest_tokens_fills_the_context(bpe: Served) -> None:
    longest = max(bpe.toy.names, key=len)
    answer = bpe.api.complete(prompt=longest * (N_CONTEXT - 1), max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == N_CONTEXT - 1
    assert bpe.api.refused(prompt="a" * 1_000_000)["code"] == "context_length_exceeded"
