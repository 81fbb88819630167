"""Which of a prompt's candidates are returned."""

from collections.abc import Sequence as Ordered

from app.engine.events import Finished


def mean_logprob(candidate: Finished) -> float:
    """Mean log probability of a candidate's sampled tokens, the end token included; 0 where none was sampled."""
    return candidate.sum_logprob / candidate.n_sampled if candidate.n_sampled else 0.0


def best(candidates: Ordered[Finished], n: int) -> list[int]:
    """Indices of the `n` candidates with the highest mean, best first; of equals the earlier. All: as they are."""
    if n == len(candidates):
        return list(range(n))
    return sorted(range(len(candidates)), key=lambda k: -mean_logprob(candidates[k]))[:n]
