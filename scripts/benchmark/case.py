"""What a case is, how much it asks, and who takes part. Knows none of the cases."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from scripts.benchmark import bare
from scripts.benchmark.report import Target
from scripts.benchmark.servers import Server

Side = Callable[[int], float]
"""Measures once; told the round's number, so that no text is read twice."""

USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
"""Fields of a stream that tells its tokens."""


@dataclass(frozen=True)
class Sizes:
    """How much is asked. words: of a prompt, tokens of a completion, and both are near enough each other."""

    rounds: int = 5
    widths: tuple[int, ...] = (1, 8, 16, 32)
    words: int = 64
    tokens: int = 64
    long_words: int = 2000
    n_texts: int = 4
    text_words: int = 512
    n_questions: int = 64
    shared_words: int = 600
    toy_tokens: int = 256
    toy_requests: int = 512


QUICK = Sizes(
    rounds=1, widths=(1, 8), tokens=16, long_words=500, n_texts=1, n_questions=8, toy_tokens=64, toy_requests=128
)


@dataclass(frozen=True)
class Bench:
    """Sizes, and those who take part. uncached: segue without its prefix cache; drafting: with guesses from the text
    before; toy: with a toy model.
    """

    sizes: Sizes
    model: str
    threads: int | None
    segue: Server
    peers: tuple[Server, ...] = ()
    uncached: Server | None = None
    drafting: Server | None = None
    toy: Server | None = None
    toy_model: str = ""

    def limit(self, task: str, round_: int, case: str = "", as_filed: bool = False, **numbers: int) -> bare.Seconds:
        """What the bare loop needs, as `bare.run` does it. Raises bare.Failure."""
        return bare.run(self.model, self.threads, task, round_, case, as_filed, **numbers)

    def toy_limit(self, round_: int, **numbers: int) -> bare.Seconds:
        """Toys are decoded by one thread, here as in their server."""
        return bare.run(self.toy_model, 1, "decode", round_, **numbers)

    def servers(self, name: str, width: int = 1) -> Iterator[Server]:
        """segue, and the peers that a case of this name and width may ask."""
        yield self.segue
        for peer in self.peers:
            if name not in peer.dialect.lacks and width <= peer.dialect.most:
                yield peer


@dataclass(frozen=True)
class Case:
    """A line of figures. of: the side that is compared with the others; targets: by the side compared with."""

    what: str
    unit: str
    of: str
    sides: Mapping[str, Side]
    targets: Mapping[str | None, Target] = field(default_factory=dict)
