"""The tokens of a sequence as penalties see them.

Owns the formulas of the penalties; refuses to know what else is done to a row.
"""

import numpy as np
from numpy.typing import NDArray

from app.engine.params import SamplingParams

MOST = np.finfo(np.float32).max
"""What a logit may grow to under a tiny repetition penalty: an infinite one would leave no distribution."""

LEAST_FACTOR = np.finfo(np.float32).tiny
"""What a repetition penalty is at least: 0 times an impossible logit would be no number."""


class History:
    """Which tokens have occurred, and how often they were generated."""

    __slots__ = ("_counts", "_ids", "_index", "_n")

    def __init__(self, prompt: NDArray[np.int32]) -> None:
        seen = np.unique(prompt).astype(np.int64)
        self._n = len(seen)
        self._ids = np.concatenate([seen, np.zeros(64, np.int64)])
        self._counts = np.zeros(len(self._ids), np.float32)
        self._index = {int(token): i for i, token in enumerate(seen)}

    def add(self, token: int) -> None:
        """Count a generated token."""
        at = self._index.get(token)
        if at is None:
            if self._n == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            at = self._index[token] = self._n
            self._ids[at] = token
            self._n += 1
        self._counts[at] += 1

    def penalise(self, row: NDArray[np.float32], params: SamplingParams) -> None:
        """Lower `row` in place.

        Repetition (Keskar et al., arXiv 1909.05858, over prompt and completion): a positive logit is divided by the
        penalty, a negative one multiplied. Frequency and presence, over the completion alone, as OpenAI's API
        reference gives them: logit -= count * frequency + (count > 0) * presence.
        """
        ids, counts = self._ids[: self._n], self._counts[: self._n]
        logits = row[ids]
        if params.repetition_penalty != 1.0:
            factor = max(np.float32(params.repetition_penalty), LEAST_FACTOR)
            with np.errstate(over="ignore"):
                logits = np.where(logits > 0, np.minimum(logits / factor, MOST), logits * factor)
        logits -= counts * np.float32(params.frequency_penalty)
        logits -= (counts > 0) * np.float32(params.presence_penalty)
        row[ids] = logits
