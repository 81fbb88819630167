"""Logits as weights, and where a number between 0 and 1 falls among them; and the largest of a row.

Owns the layout: token t stands in lane t % 4096, by whose sums a token is drawn and by whose maxima the likeliest are
found, so that no vocabulary is sorted. Refuses to know what is asked of a row.
"""

import math
from collections.abc import Sequence as Ordered
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LANES = 4096
SPAN = 1 << 18
"""Logits that are worked on at once: a megabyte, so that they are still in the processor's cache for the next pass."""
MOST_ROWS = 64
"""Rows that one load takes."""
_HEADROOM = 1 - 1e-6
"""numpy's exp in float32 is off by a bit or two: of two logits next to each other the smaller may weigh more."""

LEAST_TOTAL = 1e-10
"""Weights that sum to less are taken again, relative to the largest: float32 has too few small numbers for them."""

Row = NDArray[np.float32]
Rows = NDArray[np.float32]
Ids = NDArray[np.int64]


class Weights:
    """exp(rows / temperature), by the sums of their lanes. The next `load` reuses the buffers.

    The weights themselves are overwritten when they have been summed, unless no more than `n_at_once` rows are loaded.
    Those of a lane are made again where one of its tokens is drawn.
    """

    def __init__(self, n_vocab: int) -> None:
        n_lanes = min(LANES, n_vocab)
        n_deep = -(-n_vocab // n_lanes)
        self.n_vocab = n_vocab
        self._n_lanes = n_lanes
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
        self, rows: Ordered[Row], temperatures: Ordered[float] = (), banned: Ordered[Ids | None] = (),
        has_top: bool = False,
    ) -> None:  # fmt: skip
        """Take rows, which must stay as they are until the next load; a temperature for each unless all are 1, and
        tokens of each that are to have no weight, if any are.

        has_top: whether the `likeliest` will be asked for. Raises FloatingPointError where a row has no finite logit, a
        NaN, or no token left.
        """
        n = len(rows)
        self._rows, self._banned, self._temperatures = rows, banned, temperatures
        self._spared = [0.0] * n
        """What the banned tokens of each row weigh."""
        self._anew: dict[int, _Anew] = {}
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, n, self.n_at_once):
                self._weigh(slice(start, min(start + self.n_at_once, n)), has_top)
            self._cumulate(slice(0, n))
        for at, (total, spared) in enumerate(zip(self._edges[:n, -1].tolist(), self._spared, strict=True)):
            if not LEAST_TOTAL < total <= total + spared < math.inf:
                self._anew[at] = self._weigh_anew(at)

    def _weigh(self, these: slice, has_top: bool) -> None:
        """Weigh some rows, and sum their lanes."""
        rows, temperatures = self._rows[these], self._temperatures[these]
        weights, lanes = self._flat[: len(rows), : self.n_vocab], self._lanes[: len(rows)]
        if temperatures:
            for row, factor, into in zip(rows, _inverse(temperatures), weights, strict=True):
                np.multiply(row, factor, out=into)
            np.exp(weights, out=weights)
        else:
            for row, into in zip(rows, weights, strict=True):
                np.exp(row, out=into)
        if has_top:
            np.maximum.reduce(lanes, axis=1, out=self._maxima[these])
        # Not strict: where nothing is banned of any row, there are no bans.
        for row, ids, at in zip(weights, self._banned[these], range(these.start, these.stop), strict=False):
            if ids is not None:
                self._spared[at] = float(row[ids].sum(dtype=np.float64))
                row[ids] = 0
        np.add.reduce(lanes, axis=1, out=self._sums[these])

    def _cumulate(self, these: slice) -> None:
        np.cumsum(self._sums[these], axis=1, dtype=np.float64, out=self._edges[these, 1:])

    def _weigh_anew(self, at: int) -> "_Anew":
        """Weigh one row relative to the largest logit that may be drawn."""
        left = self._rows[at].copy()
        most = float(left.max())
        if not math.isfinite(most):
            raise FloatingPointError(f"the largest logit is {most}")
        normaliser = most + math.log(np.exp(left - np.float32(most)).sum(dtype=np.float64))
        if self._banned and (ids := self._banned[at]) is not None:
            left[ids] = -np.inf
        shift = float(left.max())
        if shift == -math.inf:
            raise FloatingPointError("no token is left to draw")
        place = at % self.n_at_once
        self.each(place)[:] = self._weights_of(left, at, shift)
        np.add.reduce(self._lanes[place], axis=0, out=self._sums[at])
        self._cumulate(slice(at, at + 1))
        return _Anew(normaliser, shift)

    def _weights_of(self, logits: Row, at: int, shift: float) -> Row:
        """The weights of some logits of row `at`, relative to one of `shift`."""
        if shift:
            logits = logits - np.float32(shift)
        if self._temperatures:
            with np.errstate(over="ignore"):
                logits = logits * _inverse(self._temperatures[at : at + 1])
        weights: Row = np.exp(logits)
        return weights

    def each(self, at: int) -> Row:
        """One weight a token of row `at`, where no more rows were loaded than are worked on at once."""
        return self._flat[at, : self.n_vocab]

    def total(self, at: int) -> float:
        """What the weights of row `at` sum to."""
        return float(self._edges[at, -1])

    @property
    def log_normalisers(self) -> list[float]:
        """log(sum(exp(row))) of each row, banned tokens included, where they were loaded at temperature 1."""
        totals = self._edges[: len(self._rows), -1].tolist()
        return [
            self._anew[at].normaliser if at in self._anew else math.log(total + spared)
            for at, (total, spared) in enumerate(zip(totals, self._spared, strict=True))
        ]

    def draw(self, at: int, uniform: float) -> int:
        """The token of row `at` whose share of the distribution holds `uniform`, a number in [0, 1)."""
        edges = self._edges[at]
        target = uniform * edges[-1]
        lane = _first_above(edges[1:], target)
        if len(self._firsts) == 1:
            return lane
        cumulated = self._of_lane(at, lane).cumsum(dtype=np.float64)
        return _first_above(cumulated, target - edges[lane]) * self._n_lanes + lane

    def _of_lane(self, at: int, lane: int) -> Row:
        """The weights of a lane, as they were when they were summed."""
        n_lanes, shift = self._n_lanes, self._anew[at].shift if at in self._anew else 0.0
        logits = self._rows[at][lane::n_lanes].copy()
        if self._banned and (ids := self._banned[at]) is not None:
            logits[ids[ids % n_lanes == lane] // n_lanes] = -np.inf
        return self._weights_of(logits, at, shift)

    def likeliest(self, k: int) -> list[list[tuple[int, float]]]:
        """The `k` tokens of each row with the largest logits, and those, largest first; of equals the smaller id."""
        if not _is_worth_lanes(self.n_vocab, k) or self._anew:
            return [_with_logits(row, largest(row, k)) for row in self._rows]
        maxima = self._maxima[: len(self._rows)]
        bounds = np.partition(maxima, -k, axis=1)[:, -k, None] * np.float32(_HEADROOM)
        lanes = np.flatnonzero(maxima >= bounds) % self._n_lanes
        if len(lanes) > k * len(maxima):  # more lanes than k hold weights as large
            return [_with_logits(row, largest(row, k)) for row in self._rows]
        # In the order of the tokens, so that of equals the first comes first.
        ids = (self._firsts[:, None] + lanes.reshape(-1, 1, k)).reshape(len(maxima), -1)
        taken = [row[each] for row, each in zip(self._rows, np.minimum(ids, self.n_vocab - 1), strict=True)]
        logits = np.where(ids < self.n_vocab, np.stack(taken), -np.inf)
        rows, best = np.arange(len(maxima))[:, None], (-logits).argsort(axis=1, kind="stable")[:, :k]
        found = zip(ids[rows, best].tolist(), logits[rows, best].tolist(), strict=True)
        return [list(zip(*each, strict=True)) for each in found]


class _Anew(NamedTuple):
    """Of a row that was weighed relative to one of its logits: log(sum(exp(row))), and that logit."""

    normaliser: float
    shift: float


def _inverse(temperatures: Ordered[float]) -> Row:
    return 1.0 / np.array(temperatures, np.float32)


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
    ids = _likely(row, k) if _is_worth_lanes(n_vocab, k) else np.arange(n_vocab)
    values = row[ids]
    bound = np.partition(values, len(values) - k)[len(values) - k]
    ids = ids[values >= bound]
    top: Ids = ids[np.argsort(-row[ids], kind="stable")][:k]
    return top


def _is_worth_lanes(n_vocab: int, k: int) -> bool:
    """Whether a few lanes hold the largest."""
    return n_vocab > 2 * LANES and k < LANES // 16


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
