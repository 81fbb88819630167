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
    """The first `n_tokens` of a prompt and its completion, which lie in the cells of a slot.

    Where they were scored, `scores[i]` is that of token `first + i`. n_known: tokens up to which all scores are known.
    n_top: how many of the likeliest tokens they come with. owner: for whom they were read.
    """

    slot: int
    prompt: Tokens
    generated: list[int]
    n_tokens: int
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
        first = job.score_from or 0
        return cls(
            sequence.slot, job.prompt, sequence.generated, sequence.n_computed if n_tokens is None else n_tokens,
            scores, first, first + len(scores), job.n_top or 0, sequence.family.owner,
        )  # fmt: skip

    @classmethod
    def promised(cls, sequence: Sequence) -> "Source":
        """What a sequence will have read when it goes on; the scores to come are known by their number alone."""
        n_known = 0 if sequence.job.score_from is None else len(sequence.job.prompt)
        return replace(cls.of(sequence, sequence.n_computed + sequence.n_pending), n_known=n_known)

    @property
    def tokens(self) -> Tokens:
        n_generated = self.n_tokens - len(self.prompt)
        if n_generated <= 0:
            return self.prompt[: self.n_tokens]
        return np.concatenate([self.prompt, np.array(self.generated[:n_generated], np.int32)])

    def n_alike(self, tokens: Tokens) -> int:
        """How many of its tokens another text begins with."""
        n = common_prefix(self.prompt[: self.n_tokens], tokens)
        return n if n < len(self.prompt) or n == self.n_tokens else common_prefix(self.tokens, tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """What a sequence can take over: the first `n_tokens` cells of a source, and the scores that it needs of them.

    first_scored: the first token whose score is needed; None where none is. n_top: top entries to each.
    """

    source: Source
    n_tokens: int
    first_scored: int | None = None
    n_top: int = 0

    @property
    def scores(self) -> list[Score]:
        """Made when a share is taken: many are looked at."""
        if self.first_scored is None:
            return []
        skipped, n = self.first_scored - self.source.first, self.n_tokens + 1 - self.first_scored
        return [Score(s.logprob, s.top[: self.n_top]) for s in self.source.scores[skipped : skipped + n]]


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
    n_alike = source.n_alike(sequence.tokens(0, n_wanted))
    n_tokens, first_scored, n_top = min(n_alike, n_wanted - 1), None, job.n_top or 0
    if sequence.next_scored < len(job.prompt):
        # The row of a shared token is not computed, so that the score of the token after it has to be known.
        first = sequence.next_scored
        n_scored = min(n_tokens, n_alike - 1, source.n_known - 1)
        if source.first <= first <= n_scored and n_top <= source.n_top:
            n_tokens, first_scored = n_scored, first
        else:
            n_tokens = min(n_tokens, first - 1)
    if n_tokens < 1 or (not can_cut and n_tokens != source.n_tokens):
        return None
    return Share(source, n_tokens, first_scored, n_top)


class PrefixCache:
    """The residents: slots that no sequence runs in, kept until their cells are needed."""

    def __init__(self, slots: Slots, *, can_cut: bool, n_worth: int = 1) -> None:
        """n_worth: tokens from which on it pays to take over what was read for another owner."""
        self._slots = slots
        self._can_cut = can_cut
        self._n_worth = n_worth
        self._residents: list[Source] = []
        """The least recently used first."""

    def __len__(self) -> int:
        return len(self._residents)

    def keep(self, resident: Source) -> None:
        """Take over a slot. A resident that the new one begins with serves no purpose any more, and goes."""
        tokens = resident.tokens
        for other in [r for r in self._residents if self._covers(resident, tokens, r)]:
            self._drop(other)
        self._residents.append(resident)

    def _covers(self, longer: Source, tokens: Tokens, shorter: Source) -> bool:
        return (
            (self._can_cut or longer.n_tokens == shorter.n_tokens)
            and shorter.n_alike(tokens) == shorter.n_tokens
            and (not shorter.scores or self._scores_cover(longer, shorter))
        )

    @staticmethod
    def _scores_cover(longer: Source, shorter: Source) -> bool:
        return longer.first <= shorter.first and longer.n_known >= shorter.n_known and longer.n_top >= shorter.n_top

    def best(self, sequence: Sequence, running: Iterable[Sequence]) -> Share | None:
        """The most that `sequence` can take over from a resident, or from what a running sequence has read."""
        sources = [*self._residents, *(Source.of(s) for s in running)]
        shares = [found for source in sources if (found := self.share(source, sequence))]
        return max(shares, key=lambda found: found.n_tokens, default=None)

    def share(self, source: Source, sequence: Sequence) -> Share | None:
        """What `sequence` can take over from a source, if it may and that is worth it."""
        is_own = source.owner == sequence.family.owner
        if not is_own and (not sequence.job.reuses or source.n_tokens < self._n_worth):
            return None
        found = share(source, sequence, self._can_cut)
        return found if found and (is_own or found.n_tokens >= self._n_worth) else None

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

    def forget(self, owner: Hashable, n_worth: int | None = None) -> None:
        """Drop what was read for an owner, unless it has `n_worth` tokens."""
        for resident in [r for r in self._residents if r.owner == owner]:
            if n_worth is None or resident.n_tokens < n_worth:
                self._drop(resident)

    def _drop(self, resident: Source) -> None:
        self._residents.remove(resident)
        self._slots.drop(resident.slot)
