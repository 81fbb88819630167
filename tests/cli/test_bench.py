"""`segue bench`: what it asks, and how times become speeds. No number here depends on how fast anything is."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from app.cli import speed
from app.cli.speed import Asked, Stream
from app.errors import InvalidRequest, SegueError
from app.schemas import Choice, Completion, CompletionRequest, PromptTokensDetails, Usage
from tests.cli.commands import printed, refused, run
from tests.conftest import Served

SMALL = ("--rounds", "1", "--words", "32", "--tokens", "4", "--streams", "2", "--streams", "1")


def test_tokens_a_second_are_counted_from_the_first_token_on() -> None:
    # 10 + 6 tokens, of which the first of each is of the reading; from 2 s to 9 s.
    streams = [Stream(sent=0, first=2, last=9, n_prompt=5, n_tokens=10), Stream(0, 3, 7, 5, 6)]
    assert speed.tokens_a_second(streams) == 14 / 7
    assert speed.tokens_a_second([Stream(0, 2, 2, 5, 1)]) == 0
    assert speed.tokens_a_second([Stream(0, 2, 2, 5, 9)]) == 0  # all in one chunk


class Told:
    """A source that writes down what it is asked. refuses: a field that it does not know."""

    model = "m"

    def __init__(self, *, refuses: bool = False, usage: bool = True) -> None:
        self.asked: list[CompletionRequest] = []
        self._refuses, self._usage = refuses, usage

    async def answer(self, request: CompletionRequest) -> Completion:
        raise AssertionError("only streams are timed")

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Completion, None]:
        if self._refuses and request.ignore_eos is not None:
            raise InvalidRequest("ignore_eos is unknown")
        self.asked.append(request)
        for _ in range(request.max_tokens or 0):
            yield chunk(choices=[Choice("a", 0)], usage=None)
        if self._usage:
            yield chunk(choices=[], usage=Usage(77, request.max_tokens or 0, 0, PromptTokensDetails()))


def chunk(choices: list[Choice], usage: Usage | None) -> Completion:
    return Completion("x", "text_completion", 0, "m", "", choices, usage)


async def test_every_text_is_new_and_every_stream_has_its_length() -> None:
    source = Told()
    found = await speed.measure(source, Asked(n_words=32, n_tokens=5, widths=(1, 3), n_rounds=2))
    warm, *asked = source.asked
    assert warm.ignore_eos
    assert len({request.prompt for request in asked}) == len(asked) == 2 * (1 + 1 + 1 + 3)
    shapes = [(len(str(request.prompt).split()), request.max_tokens) for request in asked[:6]]
    assert shapes == [(32, 1), (speed.SHORT_WORDS, 1), *[(speed.SHORT_WORDS, 5)] * 4]
    assert all(request.stream and request.model == "m" and request.temperature == 0 for request in asked)
    assert found.n_read == 77
    assert list(found.decoding) == [1, 3]


async def test_a_server_that_knows_only_openais_fields_is_asked_only_those() -> None:
    source = Told(refuses=True, usage=False)
    found = await speed.measure(source, Asked(32, 2, (1,), 1))
    assert {request.ignore_eos for request in source.asked} == {None}
    assert found.n_read == 32


def test_it_measures_a_server(spm: Served) -> None:
    told = json.loads(printed("bench", "--url", spm.server.url, *SMALL, "--json"))
    assert told["model"] == "toy-spm"
    assert told["n_read"] >= 32
    assert list(told["decoding"]) == ["2", "1"]
    assert min(told["reading"], told["first_token"], *told["decoding"].values()) > 0


def test_it_measures_a_model_of_its_own_and_tells_in_eighty_columns(spm: Served, toy_folder: Path) -> None:
    done = run("bench", "--model", str(toy_folder / "toy-spm.gguf"), "--threads", "1", *SMALL)
    assert (done.exit_code, done.stderr) == (0, "")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert lines[0].startswith("toy-spm")
    assert [line.split("  ")[0] for line in lines[2:]] == [
        f"first token, after {speed.SHORT_WORDS} words", "decoding, 2 streams", "decoding, 1 stream"
    ]  # fmt: skip
    assert max(map(len, lines)) <= 80


def test_what_a_server_refuses_is_told(spm: Served) -> None:
    assert "9000" in refused(2, "bench", "--url", spm.server.url, "--tokens", "9000")
    assert run("bench", "--url", spm.server.url, "--rounds", "0").exit_code == 2


async def test_a_server_that_says_nothing_cannot_be_timed() -> None:
    class Mute(Told):
        async def stream(self, request: CompletionRequest) -> AsyncGenerator[Completion, None]:
            yield chunk(choices=[], usage=None)

    with pytest.raises(SegueError, match="bring no text"):
        await speed.measure(Mute(), Asked(n_words=3, n_tokens=5, widths=(1,), n_rounds=1))
