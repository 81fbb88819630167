"""Rows of logits to tokens, in numpy.

Owns the arithmetic: normalisers, the largest logits, bias and penalties, truncation, the draw. Refuses to know
sequences. Everything is exact: nothing is cut from a distribution unless the request asks for it.

Rows are float32 of shape (n_rows, n_vocab). Nothing here sorts a vocabulary: token t stands in lane t % 4096, by whose
sums a token is drawn and by whose maxima the likeliest are found. Rows with the same needs are worked on together, as
many at once as fit into a processor's cache: one of a large vocabulary, hundreds of a small one.
"""

from collections import defaultdict
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.engine.params import SamplingParams

LANES = 4096
SPAN = 1 << 18
"""Logits that are worked on at once: a megabyte."""

MOST = np.finfo(np.float32).max
"""What a logit may grow to under a tiny repetition penalty: an infinite one would leave no distribution."""

LEAST_FACTOR = np.finfo(np.float32).tiny
"""What a repetition penalty is at least: 0 times an impossible logit would be no number."""

LEAST_TOTAL = 1e-10
"""Weights that sum to less are taken again, relative to the largest: float32 has too few small numbers for them."""

Row = NDArray[np.float32]
Rows = NDArray[np.float32]
Ids = NDArray[np.int64]


class History:
    """The tokens of a sequence as penalties see them: which have occurred, and how often they were generated."""

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

    def penalise(self, row: Row, params: SamplingParams) -> None:
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
        weights, edges = self._flat[:n, : self.n_vocab], self._edges[:n]
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = rows
            if temperatures:
                scaled = np.multiply(rows, 1.0 / np.array(temperatures, np.float32)[:, None], out=weights)
            np.exp(scaled, out=weights)
            np.cumsum(self._lanes[:n].sum(axis=1), axis=1, dtype=np.float64, out=edges[:, 1:])
        totals = edges[:, -1]
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


@dataclass(slots=True, eq=False)
class Want:
    """What is wanted of a row: a token for each of `uniforms`, numbers in [0, 1), and maybe its normaliser.

    row: its number among the step's rows. banned: never drawn.
    """

    row: int
    params: SamplingParams
    uniforms: list[float]
    history: History | None = None
    banned: Ids | None = None
    scored: bool = False

    @property
    def need(self) -> "Need":
        params = self.params
        adjusted = params.bias is not None or self.history is not None or self.banned is not None
        return Need(adjusted, params.greedy, params.truncates, params.temperature != 1.0, self.scored)


class Need(NamedTuple):
    """What has to be done to rows, by which they are grouped."""

    adjusted: bool
    greedy: bool
    truncates: bool
    tempered: bool
    scored: bool


class Drawn(NamedTuple):
    """What came of a want. normaliser: log(sum(exp(row))); a token's log probability is its logit less this."""

    tokens: list[int]
    normaliser: float


class Sampler:
    """Draws and scores for rows of one vocabulary. Owns the buffers; not to be shared between threads."""

    def __init__(self, n_vocab: int) -> None:
        self._raw = Weights(n_vocab)
        self._tempered = Weights(n_vocab)
        self._adjusted = np.zeros((self._raw.most_rows, n_vocab), np.float32)

    def normalisers(self, rows: Rows) -> list[float]:
        """log(sum(exp(row))) of each row. Raises FloatingPointError where one has a NaN or no finite logit."""
        found: list[float] = []
        for start in range(0, len(rows), self._raw.most_rows):
            self._raw.load(rows[start : start + self._raw.most_rows])
            found += self._raw.log_normalisers
        return found

    def sample(self, rows: Rows, wants: Ordered[Want]) -> list[Drawn]:
        """What each want asks for: bias and bans, penalties, temperature, then top_k, top_p, min_p.

        The rows are left as they are. Raises FloatingPointError where one has a NaN, or no token is left to draw.
        """
        alike: defaultdict[Need, list[int]] = defaultdict(list)
        for i, want in enumerate(wants):
            alike[want.need].append(i)
        drawn: dict[int, Drawn] = {}
        for need, members in alike.items():
            for start in range(0, len(members), self._raw.most_rows):
                group = members[start : start + self._raw.most_rows]
                drawn.update(zip(group, self._sample(rows, [wants[i] for i in group], need), strict=True))
        return [drawn[i] for i in range(len(wants))]

    def _sample(self, rows: Rows, wants: list[Want], need: Need) -> list[Drawn]:
        """For a group of rows that need the same."""
        given = _taken(rows, [want.row for want in wants])
        normalisers = [0.0] * len(wants)
        if need.scored:
            self._raw.load(given)
            normalisers = self._raw.log_normalisers
        adjusted = self._adjust(given, wants) if need.adjusted else given
        if need.greedy:
            tokens = [[token] * len(want.uniforms) for token, want in zip(_greedy(adjusted), wants, strict=True)]
        else:
            # The pass that scored these very rows has done the work already.
            weights = self._raw if need.scored and not need.adjusted and not need.tempered else self._tempered
            if weights is self._tempered:
                weights.load(adjusted, [want.params.temperature for want in wants] if need.tempered else ())
            tokens = _drawn(weights, wants, need)
        return list(map(Drawn, tokens, normalisers))

    def _adjust(self, given: Rows, wants: list[Want]) -> Rows:
        adjusted = self._adjusted[: len(given)]
        np.copyto(adjusted, given)
        for row, want in zip(adjusted, wants, strict=True):
            if bias := want.params.bias:
                row[bias.ids] += bias.values
                if len(bias.only):
                    kept = row[bias.only]
                    row.fill(-np.inf)
                    row[bias.only] = kept
            if want.banned is not None:
                row[want.banned] = -np.inf
            if want.history is not None:
                want.history.penalise(row, want.params)
        return adjusted


def _taken(rows: Rows, numbers: list[int]) -> Rows:
    """Some of the rows; no copy is made of neighbours."""
    first, n = numbers[0], len(numbers)
    return rows[first : first + n] if numbers == list(range(first, first + n)) else rows[numbers]


def _greedy(rows: Rows) -> list[int]:
    tokens = rows.argmax(axis=1)
    largest = rows[np.arange(len(rows)), tokens]
    if not np.isfinite(largest).all():
        raise FloatingPointError(f"the largest logits are {largest}")
    found: list[int] = tokens.tolist()
    return found


def _drawn(weights: Weights, wants: list[Want], need: Need) -> list[list[int]]:
    """The tokens of each want. All uniforms of all rows are looked up at once, unless the rows are truncated."""
    if need.truncates:
        nuclei = [_truncate(weights, i, want.params) for i, want in enumerate(wants)]
        return [[nucleus.draw(u) for u in want.uniforms] for nucleus, want in zip(nuclei, wants, strict=True)]
    at = [i for i, want in enumerate(wants) for _ in want.uniforms]
    tokens = iter(weights.draw(at, [uniform for want in wants for uniform in want.uniforms]))
    return [[next(tokens) for _ in want.uniforms] for want in wants]


def _truncate(weights: Weights, at: int, params: SamplingParams) -> Nucleus:
    """top_k, then top_p of what is left, then min_p; ties go to the smaller id.

    Tokens outside a nucleus of mass top_p weigh less than 1 - top_p together, so that a token of at most
    (1 - top_p) / n_vocab is never needed to fill it: only likelier ones are looked at.
    """
    each, total = weights.each(at), weights.total(at)
    if params.top_k:
        ids = largest(each, params.top_k)
        kept = each[ids]
        total = float(kept.sum(dtype=np.float64))
        most = kept[0]
    else:
        most = each.max()
        floor = total * (1.0 - params.top_p) / weights.n_vocab
        # The likeliest token always stays, whatever top_p.
        ids = np.flatnonzero(each > max(min(floor, float(most) / 2), float(most) * params.min_p * 0.999))
        kept = each[ids]
    if params.top_p < 1.0:
        stays = _heaviest(kept, params.top_p * total)
        ids, kept = ids[stays], kept[stays]
    if params.min_p:
        likely = kept >= most * np.float32(params.min_p)
        ids, kept = ids[likely], kept[likely]
    return Nucleus(ids, kept)


def _heaviest(weights: Row, mass: float) -> Ids:
    """Where the fewest weights are that make up `mass`, at least one; of equals the first stay.

    The weights themselves are sorted, not their places: that is ten times as fast.
    """
    falling = np.sort(weights)[::-1]
    n_kept = min(int(falling.cumsum(dtype=np.float64).searchsorted(mass)) + 1, len(weights))
    least = falling[n_kept - 1]
    larger = np.flatnonzero(weights > least)
    return np.concatenate([larger, np.flatnonzero(weights == least)[: n_kept - len(larger)]])


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


def generator(entropy: int, choice: int) -> np.random.Generator:
    """The generator of one choice: it depends on the seed and the choice's number alone."""
    sequence = np.random.SeedSequence(entropy=entropy, spawn_key=(choice,))
    return np.random.Generator(np.random.PCG64(sequence))


def merged_ids(*groups: Ordered[int] | frozenset[int]) -> Ids | None:
    """Token ids of several groups as one index array; None where there are none."""
    ids = sorted(set().union(*groups))
    return np.array(ids, np.int64) if ids else None
