"""What became of a request: its counts, its times and its end, for the answer's usage, the log and the metrics.

Owns the counting, which costs next to nothing a token; refuses to know who reads it.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter

from app.engine.events import Delta, Event, Finished, PromptRead, Started
from app.schemas import PromptTokensDetails, Usage

Candidate = tuple[int, int]
"""(job, number among the job's candidates)."""


class Outcome(StrEnum):
    """How a request ended."""

    DONE = "done"
    REFUSED = "refused"
    LEFT = "left"
    """The client went away."""
    EXPIRED = "expired"
    """It took longer than it may."""
    FAILED = "failed"
    """The engine could not go on with it."""
    BROKEN = "broken"
    """A fault outside of the engine."""


@dataclass(slots=True)
class Record:
    """One request, filled as it goes on; what is not known, or not yet, is None or 0.

    id: the answer's. lengths: tokens of each prompt. n_read: tokens of the prompts that were read; n_cached: those of
    them that were in the cache; n_hits: prompts with such. Times are seconds since it was queued. `param` and `code`
    are those of the error that it was refused with. prompts, texts: only where they are to be logged.
    """

    id: str | None = None
    model: str | None = None
    user: str | None = None
    param: str | None = None
    code: str | None = None
    outcome: Outcome | None = None
    lengths: list[int] = field(default_factory=list)
    n_read: int = 0
    n_cached: int = 0
    n_prompts: int = 0
    n_hits: int = 0
    waited: float | None = None
    first: float | None = None
    reasons: Counter[str] = field(default_factory=Counter)
    prompts: list[str] | None = None
    texts: dict[Candidate, list[str]] | None = None
    _queued: float = 0.0
    _at_once: bool = False
    _n_sampled: dict[Candidate, int] = field(default_factory=dict)
    _read: dict[int, float] = field(default_factory=dict)
    _n_following: int = 0
    _seconds_following: float = 0.0

    def queue(self, *, at_once: bool = False) -> None:
        """It is in the line: whatever does not end it in another way, its client has left.

        at_once: whether all of its events will come together, so that they tell nothing of the time between tokens.
        """
        self._queued = perf_counter()
        self._at_once = at_once
        self.outcome = Outcome.LEFT

    @property
    def was_queued(self) -> bool:
        return self._queued > 0

    def count(self, event: Event) -> None:
        """Take an event into account."""
        if isinstance(event, Delta | Finished):
            self._count_tokens(event)
        elif isinstance(event, PromptRead):
            self._read[event.job] = self._elapsed()
            self.n_prompts += 1
            self.n_read += self.lengths[event.job]
            self.n_cached += event.n_cached
            self.n_hits += event.n_cached > 0
        elif isinstance(event, Started) and self.waited is None:
            self.waited = self._elapsed()

    def _count_tokens(self, event: Delta | Finished) -> None:
        key = event.job, event.candidate
        # A first token is drawn in the step that reads the last of its prompt, whenever there is text to tell of.
        began = self._read[event.job]
        if self.first is None and event.n_sampled:
            self.first = began
        self._n_sampled[key] = event.n_sampled
        if self.texts is not None:
            self.texts.setdefault(key, []).append(event.text)
        if isinstance(event, Finished):
            n_following = 0 if self._at_once else max(event.n_sampled - 1, 0)
            self._seconds_following += (self._elapsed() - began) if n_following else 0.0
            self._n_following += n_following
            self.reasons[event.reason.value] += 1

    def _elapsed(self) -> float:
        return perf_counter() - self._queued

    @property
    def per_token(self) -> float | None:
        """Seconds from one token of a candidate to its next, on average; None where none has a second."""
        return self._seconds_following / self._n_following if self._n_following else None

    @property
    def n_sampled(self) -> int:
        return sum(self._n_sampled.values())

    @property
    def usage(self) -> Usage:
        n_prompt, n_sampled = sum(self.lengths), self.n_sampled
        return Usage(n_prompt, n_sampled, n_prompt + n_sampled, PromptTokensDetails(self.n_cached))
