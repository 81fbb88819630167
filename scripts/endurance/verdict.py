"""What was found, beside what it has to be: figures, bounds, and one word at the end."""

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MB = 1 << 20


class Check(NamedTuple):
    """A figure, shown as it is. met: None where nothing is asked of it."""

    what: str
    figure: str
    bound: str = ""
    met: bool | None = None

    def __str__(self) -> str:
        verdict = {None: "", True: "met", False: "MISSED"}[self.met]
        return f"  {self.what:<34}{self.figure:<26}{self.bound:<26}{verdict}".rstrip()


def at_most(what: str, value: float, bound: float, unit: str = "") -> Check:
    """A figure that may not be larger."""
    return Check(what, f"{value:.4g}{unit}", f"at most {bound:.4g}{unit}", value <= bound)


def at_least(what: str, value: float, bound: float, unit: str = "") -> Check:
    """A figure that may not be smaller."""
    return Check(what, f"{value:.4g}{unit}", f"at least {bound:.4g}{unit}", value >= bound)


def growth(memory: Sequence[int]) -> float:
    """MB by which readings of memory rose in their second half: its last part's median less its first part's."""
    half = memory[len(memory) // 2 :]
    part = max(len(half) // 3, 1)
    return (statistics.median(half[-part:]) - statistics.median(half[:part])) / MB


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def all_met(checks: Iterable[Check]) -> bool:
    return all(check.met is not False for check in checks)
