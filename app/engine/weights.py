"""Logits as weights, and where a number between 0 and 1 falls among them; and the largest of a row.

Owns the layout: token t stands in lane t % 4096, by whose sums a token is drawn and by whose maxima the likeliest are
found, so that no vocabulary is sorted. Refuses to know what is asked of a row.
"""

from collections.abc import Sequence as Ordered

import numpy as np
from numpy.typing import NDArray

LANES = 4096
SPAN = 1 << 18
"""Logits that are worked on at once: a megabyte, so that they are still in the processor's cache for the next pass."""
MOST_ROWS = 64
"""Rows that one load takes."""

LEAST_TOTAL = 1e-10
"""Weights that sum to less are taken again, relative to the largest: float32 has too few small numbers for them."""

Row = NDArray[np.float32]
Rows = NDArray[np.float32]
Ids = NDArray[np.int64]


class Weights:
    """exp(rows / temperature), by the sums of their lanes. The next `load` reuses the buffers.

    The weights themselves are forgotten when they are summed, but those of the last `n_at_once` rows. Those of a lane
    are made again where one of its tokens is drawn.
    """

    def __init__(self, n_vocab: int) -> None:
        n_lanes = min(LANES, n_vocab)
        n_deep = -(-n_vocab // n_lanes)
        self.n_vocab = n_vocab
        self.n_at_once = min(max(SPAN // n_vocab, 1), MOST_ROWS)
        self._flat = np.zeros((self.n_at_once, n_deep * n_lanes), np.float32)
        self._lanes = self._flat.reshape(-1, n_deep, n_lanes)
        self._firsts = np.arange(n_deep) * n_lanes
        """The first token of each depth."""
        self._sums = np.zeros((MOST_ROWS, n_lanes), np.float32)
        self._maxima = np.zeros((MOST_ROWS, n_lanes), np.float32)
        self._edges = np.zeros((MOST_ROWS, n_lanes + 1))
        """Cumulated weights of the lanes, each row from 0 to its total."""

    def load(
        self, rows: Rows, temperatures: Ordered[float] = (), banned: Ordered[Ids | None] = (), has_top: bool = False
    ) -> None:
        """Take rows, a temperature for each unless all are 1, and tokens of each that are to have no weight.

        has_top: whether the `likeliest` will be asked for. Raises FloatingPointError where a row has no finite logit, a
        NaN, or no token left.
        """
        n = len(rows)
        self._rows, self._banned = rows, banned
        self._scales = 1.0 / np.array(temperatures or [1.0] * n, np.float32)
        self._shifts = np.zeros(n, np.float32)
        self._spared = np.zeros(n)
        """What the banned tokens of each row would weigh."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for start in range(0, n, self.n_at_once):
                self._weigh(slice(start, min(start + self.n_at_once, n)), bool(temperatures), has_top)
            self._cumulate(slice(0, n))
            totals = self._edges[:n, -1]
            whole = totals + self._spared
            self._normalisers = np.log(whole)
        fine = (whole > LEAST_TOTAL) & (whole < np.inf) & (totals > LEAST_TOTAL)
        if not fine.all():
            for at in np.flatnonzero(~fine).tolist():
                self._weigh_anew(at)

    def _weigh(self, these: slice, tempered: bool, has_top: bool) -> None:
        """Weigh some rows, and sum their lanes."""
        rows = self._rows[these]
        weights, lanes = self._flat[: len(rows), : self.n_vocab], self._lanes[: len(rows)]
        scaled = np.multiply(rows, self._scales[these, None], out=weights) if tempered else rows
        np.exp(scaled, out=weights)
        if has_top:
            np.maximum.reduce(lanes, axis=1, out=self._maxima[these])
        for row, ids, at in zip(weights, self._banned[these], range(these.start, these.stop), strict=False):
            if ids is not None:
                self._spared[at] = row[ids].sum(dtype=np.float64)
                row[ids] = 0
        np.add.reduce(lanes, axis=1, out=self._sums[these])

    def _cumulate(self, these: slice) -> None:
        np.cumsum(self._sums[these], axis=1, dtype=np.float64, out=self._edges[these, 1:])

    def _weigh_anew(self, at: int) -> None:
        """Weigh one row relative to its largest logits: of all, and of those that may be drawn."""
        left = self._rows[at].copy()
        largest = left.max()
        if not np.isfinite(largest):
            raise FloatingPointError(f"the largest logit is {largest}")
        self._normalisers[at] = float(largest) + np.log(np.exp(left - largest).sum(dtype=np.float64))
        if self._banned and (ids := self._banned[at]) is not None:
            left[ids] = -np.inf
        self._shifts[at] = left.max()
        if self._shifts[at] == -np.inf:
            raise FloatingPointError("no token is left to draw")
        place = at % self.n_at_once
        with np.errstate(over="ignore"):
            np.exp((left - self._shifts[at]) * self._scales[at], out=self.each(place))
        np.add.reduce(self._lanes[place], axis=0, out=self._sums[at])
        self._cumulate(slice(at, at + 1))

    def each(self, at: int) -> Row:
        """One weight a token of row `at`, where no more rows were loaded than are worked on at once."""
        return self._flat[at, : self.n_vocab]

    def total(self, at: int) -> float:
        """What the weights of row `at` sum to."""
        return float(self._edges[at, -1])

    @property
    def log_normalisers(self) -> list[float]:
        """log(sum(exp(row))) of each row, banned tokens included, where they were loaded at temperature 1."""
        found: list[float] = self._normalisers.tolist()
        return found

    def draw(self, at: Ordered[int], uniforms: Ordered[float]) -> list[int]:
        """For each pair of a row and a number in [0, 1): the token whose share of the distribution holds the number."""
        rows, edges = np.array(at), [self._edges[i] for i in at]
        targets = [uniform * row[-1] for uniform, row in zip(uniforms, edges, strict=True)]
        lanes = [_first_above(row[1:], target) for row, target in zip(edges, targets, strict=True)]
        if len(self._firsts) == 1:
            return lanes
        rest = [target - row[lane] for row, lane, target in zip(edges, lanes, targets, strict=True)]
        cumulated = self._of_lanes(rows, np.array(lanes)).cumsum(axis=1, dtype=np.float64)
        n_lanes = self._sums.shape[1]
        return [_first_above(*each) * n_lanes + lane for *each, lane in zip(cumulated, rest, lanes, strict=True)]

    def _of_lanes(self, rows: Ids, lanes: Ids) -> Rows:
        """The weights in a lane of each row, as they were when they were summed: (len(rows), depth)."""
        logits, _ = self._logits(rows[:, None], lanes[:, None])
        weights: Rows = np.exp((logits - self._shifts[rows, None]) * self._scales[rows, None])
        if self._banned:
            n_lanes = self._sums.shape[1]
            for i, (row, lane) in enumerate(zip(rows.tolist(), lanes.tolist(), strict=True)):
                if (ids := self._banned[row]) is not None:
                    weights[i, ids[ids % n_lanes == lane] // n_lanes] = 0
        return weights

    def _logits(self, rows: Ids, lanes: Ids) -> tuple[Rows, Ids]:
        """The logits in some lanes of each row, and their tokens, in the order of these: both (n, depth * m).

        rows: (n, 1). lanes: (n, m), ascending.
        """
        ids = (self._firsts[:, None] + lanes[:, None, :]).reshape(len(rows), -1)
        if self._firsts[-1] + self._sums.shape[1] == self.n_vocab:
            return self._rows[rows, ids], ids
        logits: Rows = self._rows[rows, np.minimum(ids, self.n_vocab - 1)]
        logits[ids >= self.n_vocab] = -np.inf
        return logits, ids

    def likeliest(self, k: int) -> list[list[tuple[int, float]]]:
        """The `k` tokens of each row with the largest logits, and those, largest first; of equals the smaller id."""
        if k >= LANES // 16 or self.n_vocab <= 2 * LANES:
            return [_with_logits(row, largest(row, k)) for row in self._rows]
        maxima = self._maxima[: len(self._rows)]
        bounds = np.partition(maxima, -k, axis=1)[:, -k, None]
        lanes = np.flatnonzero(maxima >= bounds) % maxima.shape[1]
        if len(lanes) > k * len(maxima):  # more lanes than k hold weights as large
            return [_with_logits(row, largest(row, k)) for row in self._rows]
        lanes, rows = lanes.reshape(-1, k), np.arange(len(maxima))[:, None]
        logits, ids = self._logits(rows, lanes)
        best = (-logits).argsort(axis=1, kind="stable")[:, :k]
        found = zip(ids[rows, best].tolist(), logits[rows, best].tolist(), strict=True)
        return [list(zip(*each, strict=True)) for each in found]


def _with_logits(row: Row, ids: Ids) -> list[tuple[int, float]]:
    return list(zip(ids.tolist(), row[ids].tolist(), strict=True))


def _first_above(edges: NDArray[np.float64], target: np.float64) -> int:
    """The first index whose cumulated weight exceeds the target.

    By rounding none may: then the last with any weight.
    """
    at = int(edges.searchsorted(target, side="right"))
    return at if at < len(edges) else int(edges.searchsorted(edges[-1]))


class Nucleus:
    """A truncated distribution: the tokens that are left, with their weights."""

    def __init__(self, ids: Ids, weights: Row) -> None:
        self._ids = ids
        self._edges = weights.cumsum(dtype=np.float64)

    def draw(self, uniform: float) -> int:
        """The token whose share of the distribution holds `uniform`, a number in [0, 1)."""
        return int(self._ids[_first_above(self._edges, uniform * self._edges[-1])])


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
