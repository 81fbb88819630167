"""The log probabilities that a row gives to tokens: the model's own, before anything a request asks of sampling."""

from app.engine.events import Score
from app.engine.sampler import Row, Sampler, largest

FLOOR = -9999.0
"""Stands for log(0) and whatever is below it: JSON has no infinity."""


class RowScores:
    """Log-softmax of one row, computed once, for as many tokens as are asked for."""

    __slots__ = ("_normaliser", "_row", "top")

    def __init__(self, sampler: Sampler, row: Row, n_top: int) -> None:
        """Raises FloatingPointError where the row holds a NaN or no finite logit."""
        self._row = row
        self._normaliser = sampler.normaliser(row)
        self.top = [(int(i), self.logprob(int(i))) for i in largest(row, n_top)] if n_top else []

    def logprob(self, token: int) -> float:
        """log p(token), at least FLOOR."""
        return max(float(self._row[token]) - self._normaliser, FLOOR)

    def of(self, token: int) -> Score:
        return Score(self.logprob(token), self.top)
