"""How fast a source reads and decodes: streams, timed as a client sees them.

Owns what is asked and how seconds become speeds; refuses to know what answers. Every text is new, so that nothing of it
was read before.
"""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from statistics import median

import msgspec

from app.cli.sources import Source
from app.errors import RequestError, SegueError
from app.schemas import CompletionRequest, StreamOptions, Usage

WORDS = ("river", "winter", "market", "garden", "bridge", "forest", "window", "summer")
"""A token each in most vocabularies."""
SHORT_WORDS = 16
"""Of a prompt that is soon read."""


@dataclass(frozen=True)
class Asked:
    """What is measured. n_words: of a long prompt; n_tokens: of each completion; widths: streams at once."""

    n_words: int
    n_tokens: int
    widths: tuple[int, ...]
    n_rounds: int


class Speed(msgspec.Struct):
    """What was found, medians of the rounds. reading, decoding (by streams at once): tokens a second.

    n_read: tokens of the long prompt. first_token: seconds to it, after a short prompt.
    """

    n_read: int
    reading: float
    first_token: float
    decoding: dict[int, float]


@dataclass(frozen=True)
class Stream:
    """A stream that has ended. sent, first, last: when it was, and when its first and last token came, in seconds."""

    sent: float
    first: float
    last: float
    n_prompt: int
    n_tokens: int


class Asker:
    """Asks a source for streams of new texts. goes_on: past the end of a text, where the source lets it."""

    def __init__(self, source: Source, *, goes_on: bool) -> None:
        self._source = source
        self._goes_on = goes_on

    def request(self, n_words: int, n_tokens: int) -> CompletionRequest:
        return CompletionRequest(
            model=self._source.model,
            prompt=" ".join(random.choices(WORDS, k=n_words)),
            max_tokens=n_tokens,
            temperature=0,
            stream=True,
            stream_options=StreamOptions(include_usage=True),
            ignore_eos=self._goes_on or None,
        )

    async def stream(self, n_words: int, n_tokens: int) -> Stream:
        """One stream, to its end. Raises SegueError."""
        sent, came, usage = time.perf_counter(), list[float](), None
        async with aclosing(self._source.stream(self.request(n_words, n_tokens))) as chunks:
            async for chunk in chunks:
                if chunk.choices:
                    came.append(time.perf_counter())
                usage = chunk.usage if isinstance(chunk.usage, Usage) else usage
        if not came:
            raise SegueError("the server's streams bring no text: there is nothing to time.")
        n_prompt, n_tokens = (usage.prompt_tokens, usage.completion_tokens) if usage else (n_words, len(came))
        return Stream(sent, came[0], came[-1], n_prompt, n_tokens)

    async def streams(self, width: int, n_tokens: int) -> list[Stream]:
        """So many at once."""
        return await asyncio.gather(*(self.stream(SHORT_WORDS, n_tokens) for _ in range(width)))


async def measure(source: Source, asked: Asked) -> Speed:
    """Measure a source. Raises SegueError."""
    asker = await _warm(source)
    reads, firsts = list[Stream](), list[float]()
    decodes: dict[int, list[float]] = {width: [] for width in asked.widths}
    for _ in range(asked.n_rounds):
        reads.append(await asker.stream(asked.n_words, 1))
        short = await asker.stream(SHORT_WORDS, 1)
        firsts.append(short.first - short.sent)
        for width, found in decodes.items():
            found.append(tokens_a_second(await asker.streams(width, asked.n_tokens)))
    return Speed(
        n_read=reads[-1].n_prompt,
        reading=median(read.n_prompt / (read.first - read.sent) for read in reads),
        first_token=median(firsts),
        decoding={width: median(found) for width, found in decodes.items()},
    )


async def _warm(source: Source) -> Asker:
    """Who asks a source that has been asked once. `ignore_eos` is no field of OpenAI's, and some refuse it."""
    try:
        await (asker := Asker(source, goes_on=True)).stream(SHORT_WORDS, 2)
    except RequestError:
        await (asker := Asker(source, goes_on=False)).stream(SHORT_WORDS, 2)
    return asker


def tokens_a_second(streams: Sequence[Stream]) -> float:
    """Of streams at once, from when the first of them had its first token; those are of the reading."""
    n_tokens = sum(stream.n_tokens for stream in streams) - len(streams)
    seconds = max(stream.last for stream in streams) - min(stream.first for stream in streams)
    return n_tokens / seconds if n_tokens and seconds else 0.0
