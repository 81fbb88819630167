"""Rows of logits to tokens, in numpy.

Owns what is done to a row, in which order: bias and penalties, truncation, the draw. Refuses to know sequences.
Everything is exact: nothing is cut from a distribution unless the request asks for it.

Rows are float32 of shape (n_rows, n_vocab). Those with the same needs are worked on together, up to 64; where their
weights have to be at hand, only as many as fit into a processor's cache: one of a large vocabulary.
"""

import math
from collections import defaultdict
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from app.engine.history import History
from app.engine.logprobs import RowScores
from app.engine.params import SamplingParams
from app.engine.weights import MOST_ROWS, Ids, Nucleus, Row, Rows, Weights, largest


@dataclass(slots=True, eq=False)
class Want:
    """What is wanted of a row: a token for each of `uniforms`, numbers in [0, 1), and maybe its scores.

    row: its number among the step's rows. banned: never drawn. n_top: likeliest tokens that its scores come with;
    None where it is not to be scored.
    """

    row: int
    params: SamplingParams
    uniforms: list[float]
    history: History | None = None
    banned: Ids | None = None
    n_top: int | None = None

    @property
    def need(self) -> "Need":
        params = self.params
        return Need(
            params.bias is not None or self.history is not None,
            params.greedy,
            params.truncates,
            params.temperature != 1.0,
            self.n_top is not None,
        )

    def bans(self, token: int) -> bool:
        return self.banned is not None and bool((self.banned == token).any())


class Need(NamedTuple):
    """What has to be done to rows, by which they are grouped."""

    adjusted: bool
    greedy: bool
    truncates: bool
    tempered: bool
    scored: bool


class Drawn(NamedTuple):
    """What came of a want."""

    tokens: list[int]
    scores: RowScores | None


class Sampler:
    """Draws and scores for rows of one vocabulary. Owns the buffers; not to be shared between threads."""

    def __init__(self, n_vocab: int) -> None:
        self._raw = Weights(n_vocab)
        self._tempered = Weights(n_vocab)
        self._adjusted = np.zeros((self.n_at_once, n_vocab), np.float32)

    @property
    def n_at_once(self) -> int:
        """Rows that are in the processor's cache at once: fewer are not worth a thread."""
        return self._raw.n_at_once

    def scores(self, rows: Rows, n_top: int) -> list[RowScores]:
        """The scores of each row, with so many of its likeliest tokens.

        Raises FloatingPointError where a row has a NaN or no finite logit.
        """
        found: list[RowScores] = []
        for start in range(0, len(rows), MOST_ROWS):
            block = list(rows[start : start + MOST_ROWS])
            self._raw.load(block, has_top=n_top > 0)
            found += self._scores(block, [n_top] * len(block))
        return found

    def _scores(self, rows: Ordered[Row], n_tops: list[int]) -> list[RowScores]:
        """Of the rows that have been loaded."""
        most = max(n_tops)
        tops = self._raw.likeliest(most) if most else [[]] * len(rows)
        tops = [top[:n] for top, n in zip(tops, n_tops, strict=True)]
        return list(map(RowScores, rows, self._raw.log_normalisers, tops))

    def sample(self, rows: Rows, wants: Ordered[Want]) -> list[Drawn]:
        """What each want asks for: bias and bans, penalties, temperature, then top_k, top_p, min_p.

        The rows are left as they are. Raises FloatingPointError where one has a NaN, or no token is left to draw.
        """
        alike: defaultdict[Need, list[int]] = defaultdict(list)
        for i, want in enumerate(wants):
            alike[want.need].append(i)
        drawn: dict[int, Drawn] = {}
        for need, members in alike.items():
            size = self.n_at_once if need.adjusted or need.truncates else MOST_ROWS
            for start in range(0, len(members), size):
                group = members[start : start + size]
                drawn.update(zip(group, self._sample(rows, [wants[i] for i in group], need), strict=True))
        return [drawn[i] for i in range(len(wants))]

    def _sample(self, rows: Rows, wants: list[Want], need: Need) -> list[Drawn]:
        """For a group of rows that need the same."""
        given = [rows[want.row] for want in wants]
        scores: list[RowScores] | list[None] = [None] * len(wants)
        banned = [want.banned for want in wants] if any(want.banned is not None for want in wants) else []
        if need.scored:
            n_tops = [want.n_top or 0 for want in wants]
            self._raw.load(given, banned=banned, has_top=max(n_tops) > 0)
            scores = self._scores(given, n_tops)
        adjusted: Ordered[Row] = self._adjust(given, wants) if need.adjusted else given
        if need.greedy:
            tokens = [[token] * len(want.uniforms) for token, want in zip(_greedy(adjusted, wants), wants, strict=True)]
        elif need.scored and not need.adjusted and not need.tempered:
            tokens = _drawn(self._raw, wants, need)
        else:
            temperatures = [want.params.temperature for want in wants] if need.tempered else []
            self._tempered.load(adjusted, temperatures, banned)
            tokens = _drawn(self._tempered, wants, need)
        return list(map(Drawn, tokens, scores))

    def _adjust(self, given: Ordered[Row], wants: list[Want]) -> Ordered[Row]:
        adjusted = list(self._adjusted[: len(given)])
        for row, original, want in zip(adjusted, given, wants, strict=True):
            np.copyto(row, original)
            if bias := want.params.bias:
                row[bias.ids] += bias.values
                if len(bias.only):
                    kept = row[bias.only]
                    row.fill(-np.inf)
                    row[bias.only] = kept
            if want.history is not None:
                want.history.penalise(row, want.params)
        return adjusted


def _greedy(rows: Ordered[Row], wants: list[Want]) -> list[int]:
    """The likeliest token of each row, which is seldom one that is banned."""
    found = [int(row.argmax()) for row in rows]
    largest = [row.item(token) for row, token in zip(rows, found, strict=True)]
    if not all(map(math.isfinite, largest)):
        raise FloatingPointError(f"the largest logits are {largest}")
    return [_likeliest_left(rows[i], want) if want.bans(found[i]) else found[i] for i, want in enumerate(wants)]


def _likeliest_left(row: Row, want: Want) -> int:
    left = row.copy()
    left[want.banned] = -np.inf
    token = int(left.argmax())
    if left[token] == -np.inf:
        raise FloatingPointError("no token is left to draw")
    return token


def _drawn(weights: Weights, wants: list[Want], need: Need) -> list[list[int]]:
    """The tokens of each want."""
    if need.truncates:
        nuclei = [_truncate(weights, i, want.params) for i, want in enumerate(wants)]
        return [[nucleus.draw(u) for u in want.uniforms] for nucleus, want in zip(nuclei, wants, strict=True)]
    return [[weights.draw(i, uniform) for uniform in want.uniforms] for i, want in enumerate(wants)]


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


def generator(entropy: int, choice: int) -> np.random.Generator:
    """The generator of one choice: it depends on the seed and the choice's number alone."""
    sequence = np.random.SeedSequence(entropy=entropy, spawn_key=(choice,))
    return np.random.Generator(np.random.PCG64(sequence))


def merged_ids(*groups: Ordered[int] | frozenset[int]) -> Ids | None:
    """Token ids of several groups as one index array; None where there are none."""
    ids = sorted(set().union(*groups))
    return np.array(ids, np.int64) if ids else None
