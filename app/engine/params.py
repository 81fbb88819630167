"""What a job asks of the engine, checked before it gets here.

Owns the meaning of the sampling fields; refuses to know how they were spelled in a request.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

GREEDY_BELOW = 1e-5
BAN, FORCE = -100.0, 100.0


@dataclass(frozen=True, slots=True, eq=False)
class Bias:
    """A `logit_bias` as arrays: `values` are added at `ids`; where `only` is not empty, nothing else may be drawn.

    A value of -100 or less bans its token exactly; 100 or more makes the choice exclusive.
    """

    ids: NDArray[np.int64]
    values: NDArray[np.float32]
    only: NDArray[np.int64]

    @classmethod
    def of(cls, biases: dict[int, float]) -> "Bias | None":
        """`biases`: token id to a number in -100..100; None where there are none."""
        if not biases:
            return None
        ids = np.fromiter(biases.keys(), np.int64, len(biases))
        values = np.fromiter(biases.values(), np.float64, len(biases))
        only = ids[values >= FORCE]
        return cls(ids, np.where(values <= BAN, -np.inf, values).astype(np.float32), only)


@dataclass(frozen=True, slots=True, eq=False)
class SamplingParams:
    """How tokens are drawn. The defaults sample the model's own distribution."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    bias: Bias | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW or self.top_k == 1

    @property
    def truncates(self) -> bool:
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @property
    def penalises(self) -> bool:
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One prompt and what is wanted of it. Every length fits the context; every id is in the vocabulary.

    prompt: int32, at least one token. The model reads exactly these.
    end_tokens: a sampled one of these ends a candidate with "stop".
    banned: never drawn. banned_early: not drawn among the first `min_tokens`.
    n_top: how many of the likeliest tokens each log probability comes with; None: no log probabilities.
    score_from: index of the first prompt token to be scored (at least 1); None: none are.
    ranked: the candidates' mean log probabilities are needed. token_ids: the sampled tokens are to be reported.
    every: tokens that one event tells of; who waits for the whole answer need not hear of each.
    reuses: whether cells that were read for others may be shared.
    """

    prompt: NDArray[np.int32]
    max_tokens: int
    n_candidates: int = 1
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int | None = None
    stops: tuple[str, ...] = ()
    end_tokens: frozenset[int] = frozenset()
    banned: frozenset[int] = frozenset()
    banned_early: frozenset[int] = frozenset()
    min_tokens: int = 0
    n_top: int | None = None
    score_from: int | None = None
    ranked: bool = False
    token_ids: bool = False
    every: int = 1
    reuses: bool = True

    @property
    def reports(self) -> bool:
        """Whether events carry tokens beside their text."""
        return self.token_ids or self.n_top is not None

    @property
    def scores_samples(self) -> bool:
        return self.ranked or self.n_top is not None

    @property
    def n_needed(self) -> int:
        """How many prompt tokens the model must read: the last one only if something is drawn after it."""
        if self.max_tokens:
            return len(self.prompt)
        return 0 if self.score_from is None else len(self.prompt) - 1
