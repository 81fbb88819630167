"""The log probabilities that a row gives to tokens: the model's own, before anything a request asks of sampling."""

from collections.abc import Sequence as Ordered

from app.engine.events import Score
from app.engine.weights import Row

FLOOR = -9999.0
"""Stands for log(0) and whatever is below it: JSON has no infinity."""


class RowScores:
    """Log-softmax of one row, for as many tokens as are asked for."""

    __slots__ = ("_row", "normaliser", "top")

    def __init__(self, row: Row, normaliser: float, likeliest: Ordered[tuple[int, float]]) -> None:
        """normaliser: log(sum(exp(row))). likeliest: tokens and logits that the row's scores are to come with."""
        self._row = row
        self.normaliser = normaliser
        self.top = [(token, max(logit - normaliser, FLOOR)) for token, logit in likeliest]

    def of(self, token: int) -> Score:
        """The score of a token; its log probability is at least FLOOR."""
        return Score(max(self._row.item(token) - self.normaliser, FLOOR), self.top)
