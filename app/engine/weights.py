"""Logits as weights, and where a number between 0 and 1 falls among them; and the largest of a row.

Owns the layout: token t stands in lane t % 4096, by whose sums a token is drawn and by whose maxima the likeliest are
found, so that no vocabulary is sorted. Refuses to know what is asked of a row.
"""

from collections.abc import Sequence as Ordered

import numpy as np
from numpy.typing import NDArray

LANES = 4096
SPAN = 1 << 18
"""Logits that are worked on at once: a megabyte."""

LEAST_TOTAL = 1e-10
"""Weights that sum to less are taken again, relative to the largest: float32 has too few small numbers for them."""

Row = NDArray[np.float32]
Rows = NDArray[np.float32]
Ids = NDArray[np.int64]


class Weights:
    """exp(rows / temperature), and where each token's share begins. The next `load` reuses the buffers."""

    __slots__ = ("_edges", "_flat", "_lanes", "_shifts", "_totals", "n_vocab")

    def __init__(self, n_vocab: int) -> None:
        n_lanes = min(LANES, n_vocab)
        n_deep = -(-n_vocab // n_lanes)
        n_rows = max(SPAN // n_vocab, 1)
        self.n_vocab = n_vocab
        self._flat = np.zeros((n_rows, n_deep * n_lanes), np.float32)
        self._lanes = self._flat.reshape(n_rows, n_deep, n_lanes)
        self._edges = np.zeros((n_rows, n_lanes + 1))
        """Cumulated weights of the lanes, each row from 0 to its total."""

    @property
    def most_rows(self) -> int:
        """Rows that one `load` takes."""
        return len(self._flat)

    def load(self, rows: Rows, temperatures: Ordered[float] = ()) -> None:
        """Take rows, and a temperature for each unless all are 1.

        Raises FloatingPointError where a row has no finite logit, or a NaN.
        """
        n = len(rows)
        weights = self._flat[:n, : self.n_vocab]
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = rows
            if temperatures:
                scaled = np.multiply(rows, 1.0 / np.array(temperatures, np.float32)[:, None], out=weights)
            np.exp(scaled, out=weights)
            totals = self._sum(n)
        fine = (totals > LEAST_TOTAL) & (totals < np.inf)
        shifts = np.zeros(n)
        if not fine.all():
            for i in np.flatnonzero(~fine).tolist():
                shifts[i] = self._load_relative(i, rows[i], temperatures[i] if temperatures else 1.0)
        self._totals, self._shifts = totals, shifts

    def _load_relative(self, at: int, row: Row, temperature: float) -> float:
        """Take one row again, relative to its largest logit, which is returned."""
        maximum = row.max()
        if not np.isfinite(maximum):
            raise FloatingPointError(f"the largest logit is {maximum}")
        weights = self.each(at)
        with np.errstate(over="ignore"):
            np.exp((row - maximum) / np.float32(temperature), out=weights)
        np.cumsum(self._lanes[at].sum(axis=0), dtype=np.float64, out=self._edges[at, 1:])
        return float(maximum)

    def _sum(self, n: int) -> NDArray[np.float64]:
        """Cumulate the lanes of the first n rows; returns the rows' totals."""
        np.cumsum(self._lanes[:n].sum(axis=1), axis=1, dtype=np.float64, out=self._edges[:n, 1:])
        return self._edges[:n, -1]

    def ban(self, banned: Ordered[Ids | None], rows: Rows, temperatures: Ordered[float]) -> None:
        """Leave some tokens of each row no weight. rows, temperatures: as they were loaded.

        Raises FloatingPointError where a row has no token left.
        """
        for at, ids in enumerate(banned):
            if ids is not None:
                self.each(at)[ids] = 0
        totals = self._sum(len(banned))
        for at, ids in enumerate(banned):
            if ids is not None and totals[at] <= LEAST_TOTAL:
                left = rows[at].copy()
                left[ids] = -np.inf
                self._load_relative(at, left, temperatures[at])

    def each(self, at: int) -> Row:
        """One weight a token of row `at`."""
        return self._flat[at, : self.n_vocab]

    def total(self, at: int) -> float:
        """What the weights of row `at` sum to."""
        return float(self._totals[at])

    @property
    def log_normalisers(self) -> list[float]:
        """log(sum(exp(row))) of each row, where they were loaded at temperature 1."""
        result: list[float] = (np.log(self._totals) + self._shifts).tolist()
        return result

    def draw(self, at: Ordered[int], uniforms: Ordered[float]) -> list[int]:
        """For each pair of a row and a number in [0, 1): the token whose share of the distribution holds the number."""
        rows = np.array(at)
        edges = self._edges[rows]
        targets = np.array(uniforms) * edges[:, -1]
        lanes = _first_above(edges[:, 1:], targets)
        if self._lanes.shape[1] == 1:
            found: list[int] = lanes.tolist()
            return found
        below = edges[np.arange(len(rows)), lanes]
        inner = self._lanes[rows, :, lanes].cumsum(axis=1, dtype=np.float64)
        tokens: list[int] = (_first_above(inner, targets - below) * self._lanes.shape[2] + lanes).tolist()
        return tokens


def _first_above(edges: NDArray[np.float64], targets: NDArray[np.float64]) -> Ids:
    """The first index of each row whose cumulated weight exceeds the target.

    By rounding none may: then the last with any weight.
    """
    if len(edges) == 1:
        at = int(edges[0].searchsorted(targets[0], side="right"))
        return np.array([at if at < edges.shape[1] else int(edges[0].searchsorted(edges[0, -1]))])
    above = (edges <= targets[:, None]).sum(axis=1)
    last = (edges < edges[:, -1:]).sum(axis=1)
    first: Ids = np.minimum(above, last)
    return first


class Nucleus:
    """A truncated distribution: the tokens that are left, with their weights."""

    def __init__(self, ids: Ids, weights: Row) -> None:
        self._ids = ids
        self._edges = weights.cumsum(dtype=np.float64)[None]

    def draw(self, uniform: float) -> int:
        """The token whose share of the distribution holds `uniform`, a number in [0, 1)."""
        target = uniform * self._edges[0, -1:]
        return int(self._ids[_first_above(self._edges, target)[0]])


def largest(row: Row, k: int) -> Ids:
    """The ids of the `k` largest values, largest first; of equals the smaller id.

    The k largest lie in the k lanes with the largest maxima.
    """
    n_vocab = len(row)
    if k >= n_vocab:
        return np.argsort(-row, kind="stable")
    ids = _likely(row, k) if n_vocab > 2 * LANES and k < LANES // 16 else np.arange(n_vocab)
    values = row[ids]
    bound = np.partition(values, len(values) - k)[len(values) - k]
    ids = ids[values >= bound]
    top: Ids = ids[np.argsort(-row[ids], kind="stable")][:k]
    return top


def _likely(row: Row, k: int) -> Ids:
    """The ids, ascending, of the lanes that may hold one of the `k` largest values.

    The k-th largest value is at least the k-th largest of the lanes' maxima: only lanes that reach it matter.
    """
    n_whole = len(row) // LANES * LANES
    maxima, tail = row[:n_whole].reshape(-1, LANES).max(axis=0), row[n_whole:]
    np.maximum(maxima[: len(tail)], tail, out=maxima[: len(tail)])
    lanes = np.flatnonzero(maxima >= np.partition(maxima, LANES - k)[LANES - k])
    ids: Ids = (np.arange(0, len(row), LANES)[:, None] + lanes).ravel()
    return ids[ids < len(row)]
