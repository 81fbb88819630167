"""The prefix cache: what stays in the cells when a sequence has ended, found again by its tokens.

Owns the residents and their order of use; refuses to know who waits and who runs. Scores of a prompt stay with its
tokens, so that a text that was scored once need not be read again for them.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.engine.events import Score
from app.engine.sequence import Sequence
from app.engine.slots import Slots

Tokens = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Tokens that lie in the cells of a slot. Where they were scored, `scores[i]` is that of token `first + i`.

    n_known: tokens up to which all scores are known. n_top: how many of the likeliest tokens they come with.
    owner: for whom they were read.
    """

    slot: int
    tokens: Tokens
    scores: list[Score]
    first: int
    n_known: int
    n_top: int
    owner: Hashable = None

    @classmethod
    def of(cls, sequence: Sequence, n_tokens: int | None = None) -> "Source":
        """What a sequence has read so far, or the first `n_tokens` of it."""
        assert sequence.slot is not None
        job, scores = sequence.job, sequence.family.scores
        tokens = sequence.tokens(0, sequence.n_computed if n_tokens is None else n_tokens)
        first = job.score_from or 0
        owner = sequence.family.owner
        return cls(sequence.slot, tokens, scores, first, first + len(scores), job.n_top or 0, owner)

    @classmethod
    def promised(cls, sequence: Sequence) -> "Source":
        """What a sequence will have read when it goes on; the scores to come are known by their number alone."""
        n_known = 0 if sequence.job.score_from is None else len(sequence.job.prompt)
        return replace(cls.of(sequence, sequence.n_computed + sequence.n_pending), n_known=n_known)


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """What a sequence can take over: the first `n_tokens` cells of a source, and the scores that it needs of them."""

    source: Source
    n_tokens: int
    scores: list[Score]


def common_prefix(a: Tokens, b: Tokens) -> int:
    """How many tokens two texts begin with alike."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    at = int(differs.argmax()) if n else 0
    return at if n and differs[at] else n


def share(source: Source, sequence: Sequence, can_cut: bool) -> Share | None:
    """What `sequence`, which has no cells, can take over from a source; None for nothing.

    Its last token is always read, since no row of logits is kept. can_cut: whether part of a source can be taken.
    """
    job, n_wanted = sequence.job, sequence.n_pending
    n_alike = common_prefix(source.tokens, sequence.tokens(0, n_wanted))
    n_tokens, scores = min(n_alike, n_wanted - 1), []
    if sequence.next_scored < len(job.prompt):
        # The row of a shared token is not computed, so that the score of the token after it has to be known.
        first, n_top = sequence.next_scored, job.n_top or 0
        n_scored = min(n_tokens, n_alike - 1, source.n_known - 1)
        if source.first <= first <= n_scored and n_top <= source.n_top:
            n_tokens = n_scored
            scores = [
                Score(s.logprob, s.top[:n_top]) for s in source.scores[first - source.first :][: n_tokens + 1 - first]
            ]
        else:
            n_tokens = min(n_tokens, first - 1)
    if n_tokens < 1 or (not can_cut and n_tokens != len(source.tokens)):
        return None
    return Share(source, n_tokens, scores)


class PrefixCache:
    """The residents: slots that no sequence runs in, kept until their cells are needed."""

    def __init__(self, slots: Slots, *, can_cut: bool) -> None:
        self._slots = slots
        self._can_cut = can_cut
        self._residents: list[Source] = []
        """The least recently used first."""

    def __len__(self) -> int:
        return len(self._residents)

    def keep(self, resident: Source) -> None:
        """Take over a slot. A resident that the new one begins with serves no purpose any more, and goes."""
        for other in [r for r in self._residents if self._covers(resident, r)]:
            self._drop(other)
        self._residents.append(resident)

    def _covers(self, longer: Source, shorter: Source) -> bool:
        n_tokens = len(shorter.tokens)
        return (
            (self._can_cut or len(longer.tokens) == n_tokens)
            and common_prefix(longer.tokens, shorter.tokens) == n_tokens
            and (not shorter.scores or self._scores_cover(longer, shorter))
        )

    @staticmethod
    def _scores_cover(longer: Source, shorter: Source) -> bool:
        return longer.first <= shorter.first and longer.n_known >= shorter.n_known and longer.n_top >= shorter.n_top

    def best(self, sequence: Sequence, running: Iterable[Sequence]) -> Share | None:
        """The most that `sequence` can take over from a resident, or from what a running sequence has read."""
        sources = [*self._residents, *(Source.of(s) for s in running)]
        shares = [found for source in sources if (found := share(source, sequence, self._can_cut))]
        return max(shares, key=lambda found: found.n_tokens, default=None)

    def touch(self, source: Source) -> None:
        """Note that a resident was used, if it is one."""
        if source in self._residents:
            self._residents.remove(source)
            self._residents.append(source)

    def evict(self, besides: Source | None = None) -> bool:
        """Drop the resident that was not used for the longest time; False where there is none."""
        for resident in self._residents:
            if resident is not besides:
                self._drop(resident)
                return True
        return False

    def forget(self, owner: Hashable) -> None:
        """Drop what was read for an owner."""
        for resident in [r for r in self._residents if r.owner == owner]:
            self._drop(resident)

    def _drop(self, resident: Source) -> None:
        self._residents.remove(resident)
        self._slots.drop(resident.slot)
