"""What the engine reports of a job, in the order in which it happens. Pure data."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class FinishReason(StrEnum):
    """Why a candidate ended: an end token or a stop string, or its budget."""

    STOP = "stop"
    LENGTH = "length"


class Score(NamedTuple):
    """A token's log probability under the model's raw distribution, and the likeliest tokens there, best first."""

    logprob: float
    top: list[tuple[int, float]]


@dataclass(slots=True)
class Token:
    """A sampled token; `offset` is the code point of the completion at which its text begins."""

    id: int
    offset: int
    score: Score | None


@dataclass(slots=True)
class Started:
    """A job has left the line."""

    job: int


@dataclass(slots=True)
class PromptRead:
    """The prompt of job `job` has been read. `scores[i]` belongs to the prompt token `score_from + i`."""

    job: int
    n_cached: int
    scores: list[Score] = field(default_factory=list)


@dataclass(slots=True)
class Delta:
    """Text of a candidate that has become certain, and the tokens that it is made of."""

    job: int
    candidate: int
    text: str
    tokens: list[Token]
    n_sampled: int


@dataclass(slots=True)
class Finished:
    """A candidate's last event: what was still held back, and its totals.

    n_sampled: every token drawn, the end token included. sum_logprob: over those; 0 where nobody asked.
    """

    job: int
    candidate: int
    text: str
    tokens: list[Token]
    reason: FinishReason
    n_sampled: int
    sum_logprob: float


Event = Started | PromptRead | Delta | Finished
