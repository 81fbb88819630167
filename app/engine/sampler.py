"""A row of logits to tokens and log probabilities, in numpy.

Owns the arithmetic of one row: normaliser, top entries, bias and penalties, truncation, the draw. Refuses to know
sequences. Everything is exact: nothing is cut from a distribution unless the request asks for it.

A row is float32 of shape (n_vocab,). Nothing here sorts a vocabulary: rows are looked at in blocks of 512, by whose
sums a token is drawn and by whose maxima the likeliest are found.
"""

from collections.abc import Sequence as Ordered
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.engine.params import SamplingParams

BLOCK = 512

MOST = np.finfo(np.float32).max
"""What a logit may grow to under a tiny repetition penalty: an infinite one would leave no distribution."""

Row = NDArray[np.float32]
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
            factor = np.float32(params.repetition_penalty)
            with np.errstate(over="ignore"):
                logits = np.where(logits > 0, np.minimum(logits / factor, MOST), logits * factor)
        logits -= counts * np.float32(params.frequency_penalty)
        logits -= (counts > 0) * np.float32(params.presence_penalty)
        row[ids] = logits


class Weights:
    """exp((row - max) / temperature) of one row, in blocks. Its buffers are reused by the next `load`."""

    __slots__ = ("_blocks", "_flat", "_sums", "maximum", "n_vocab")

    def __init__(self, n_vocab: int) -> None:
        n_blocks = -(-n_vocab // BLOCK)
        self.n_vocab = n_vocab
        self._flat = np.zeros(n_blocks * BLOCK, np.float32)
        self._blocks = self._flat.reshape(n_blocks, BLOCK)
        self._sums: NDArray[np.float64] = np.zeros(n_blocks)
        self.maximum = 0.0

    def load(self, row: Row, temperature: float = 1.0) -> None:
        """Take a row. Raises FloatingPointError where no finite logit is left, or a logit is NaN."""
        maximum = row.max()
        if not np.isfinite(maximum):
            raise FloatingPointError(f"the largest logit is {maximum}")
        weights = self.each
        np.subtract(row, maximum, out=weights)
        if temperature != 1.0:
            with np.errstate(over="ignore"):
                weights /= np.float32(temperature)
        np.exp(weights, out=weights)
        self._sums = self._blocks.sum(axis=1).astype(np.float64)
        self.maximum = float(maximum)

    @property
    def each(self) -> Row:
        """One weight a token; the likeliest has 1."""
        return self._flat[: self.n_vocab]

    @property
    def total(self) -> float:
        return float(self._sums.sum())

    @property
    def log_normaliser(self) -> float:
        """log(sum(exp(row))), where the row was loaded at temperature 1."""
        return self.maximum + float(np.log(self.total))

    def draw(self, uniform: float) -> int:
        """The token whose share of the distribution holds `uniform`, a number in [0, 1)."""
        edges = self._sums.cumsum()
        target = uniform * edges[-1]
        block = _first_above(edges, target)
        below = edges[block - 1] if block else 0.0
        inner = self._blocks[block].cumsum(dtype=np.float64)
        return block * BLOCK + _first_above(inner, target - below)


def _first_above(edges: NDArray[np.float64], target: float) -> int:
    """The first index whose cumulated weight exceeds `target`; by rounding none may: then the last with any weight."""
    at = int(edges.searchsorted(target, side="right"))
    return at if at < len(edges) else int(edges.searchsorted(edges[-1]))


class Draw(Protocol):
    """A distribution that is ready to be drawn from, as often as a prompt has candidates."""

    def draw(self, uniform: float) -> int: ...


class Certain:
    """The distribution of greedy sampling."""

    def __init__(self, token: int) -> None:
        self._token = token

    def draw(self, uniform: float) -> int:
        return self._token


class Nucleus:
    """A truncated distribution: a few tokens, likeliest first."""

    def __init__(self, ids: Ids, weights: Row) -> None:
        self._ids = ids
        self._edges = weights.cumsum(dtype=np.float64)

    def draw(self, uniform: float) -> int:
        return int(self._ids[_first_above(self._edges, uniform * self._edges[-1])])


class Sampler:
    """Draws and scores for rows of one vocabulary. Owns the buffers; not to be shared between threads."""

    def __init__(self, n_vocab: int) -> None:
        self.n_vocab = n_vocab
        self._raw = Weights(n_vocab)
        self._tempered = Weights(n_vocab)
        self._adjusted = np.zeros(n_vocab, np.float32)
        self._loaded: Row | None = None

    def normaliser(self, row: Row) -> float:
        """log(sum(exp(row))): a token's log probability is its logit less this."""
        self._raw.load(row)
        self._loaded = row
        return self._raw.log_normaliser

    def distribution(self, row: Row, params: SamplingParams, history: History | None, banned: Ids | None) -> Draw:
        """The distribution to draw from: bias and bans, penalties, temperature, then top_k, top_p, min_p.

        `row` is left as it is; what is returned is valid until the next call. Raises FloatingPointError where no
        token is left to draw.
        """
        if params.bias is not None or history is not None or banned is not None:
            row = self._adjust(row, params, history, banned)
        if params.greedy:
            token = int(row.argmax())
            if not np.isfinite(row[token]):
                raise FloatingPointError(f"the largest logit is {row[token]}")
            return Certain(token)
        # The pass that scored this very row has done the work already.
        weights = self._raw if row is self._loaded and params.temperature == 1.0 else self._tempered
        if weights is self._tempered:
            weights.load(row, params.temperature)
        return _truncate(weights, params) if params.truncates else weights

    def _adjust(self, row: Row, params: SamplingParams, history: History | None, banned: Ids | None) -> Row:
        adjusted, bias = self._adjusted, params.bias
        np.copyto(adjusted, row)
        if bias is not None:
            adjusted[bias.ids] += bias.values
            if len(bias.only):
                kept = adjusted[bias.only]
                adjusted.fill(-np.inf)
                adjusted[bias.only] = kept
        if banned is not None:
            adjusted[banned] = -np.inf
        if history is not None:
            history.penalise(adjusted, params)
        return adjusted


def _truncate(weights: Weights, params: SamplingParams) -> Nucleus:
    """top_k, then top_p of what is left, then min_p; ties go to the smaller id.

    Tokens outside a nucleus of mass top_p weigh less than 1 - top_p together, so that a token of at most
    (1 - top_p) / n_vocab is never needed to fill it: only likelier ones are sorted.
    """
    each, total = weights.each, weights.total
    if params.top_k:
        ids = largest(each, params.top_k)
        total = float(each[ids].sum(dtype=np.float64))
    else:
        floor = total * (1.0 - params.top_p) / weights.n_vocab
        # The likeliest token weighs 1 and always stays: a floor of 0.5 is high enough for any top_p.
        ids = np.flatnonzero(each > np.float32(max(min(floor, 0.5), params.min_p * 0.999)))
        ids = ids[np.argsort(-each[ids], kind="stable")]
    kept = each[ids]
    if params.top_p < 1.0:
        n_kept = int(kept.cumsum(dtype=np.float64).searchsorted(params.top_p * total)) + 1
        ids, kept = ids[:n_kept], kept[:n_kept]
    if params.min_p:
        likely = kept >= np.float32(params.min_p)
        ids, kept = ids[likely], kept[likely]
    return Nucleus(ids, kept)


def largest(row: Row, k: int) -> Ids:
    """The ids of the `k` largest values, largest first; of equals the smaller id.

    The k largest lie in the k blocks with the largest maxima.
    """
    n_whole = len(row) // BLOCK * BLOCK
    n_blocks = n_whole // BLOCK
    if k >= len(row):
        return np.argsort(-row, kind="stable")
    if n_blocks > 2 * k:
        blocks = row[:n_whole].reshape(n_blocks, BLOCK)
        maxima = blocks.max(axis=1)
        # The k-th largest value is at least the k-th largest maximum: only blocks that reach it matter.
        bound = np.partition(maxima, n_blocks - k)[n_blocks - k]
        reached = np.flatnonzero(maxima >= bound)
        ids = (reached[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        ids = np.concatenate([ids, np.arange(n_whole, len(row))])
    else:
        ids = np.arange(len(row))
    values = row[ids]
    bound = np.partition(values, len(values) - k)[len(values) - k]
    ids = ids[values >= bound]
    top: Ids = ids[np.argsort(-row[ids], kind="stable")][:k]
    return top


def generator(entropy: int, choice: int) -> np.random.Generator:
    """The generator of one choice: it depends on the seed and the choice's number alone."""
    sequence = np.random.SeedSequence(entropy=entropy, spawn_key=(choice,))
    return np.random.Generator(np.random.PCG64(sequence))


def merged_ids(*groups: Ordered[int] | frozenset[int]) -> Ids | None:
    """Token ids of several groups as one index array; None where there are none."""
    ids = sorted(set().union(*groups))
    return np.array(ids, np.int64) if ids else None
