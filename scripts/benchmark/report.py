"""What was found, told: medians, ratios round by round, whether targets are met; as a table, and as JSON.

Knows numbers and their names alone. A ratio is the median of the rounds' ratios: what slows a whole round, as a
neighbour on the machine does, then cancels out.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

HEADINGS = ("what", "unit", "found", "against", "", "ratio", "target", "")
Figures = Mapping[str, Sequence[float]]
"""Who was measured, and what was found, a number a round."""


@dataclass(frozen=True)
class Target:
    """A bound of a ratio."""

    at_least: float | None = None
    at_most: float | None = None

    def met(self, ratio: float) -> bool:
        return (self.at_least is None or ratio >= self.at_least) and (self.at_most is None or ratio <= self.at_most)

    def __str__(self) -> str:
        return f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"


@dataclass(frozen=True)
class Comparison:
    """One line of the report: `value` of a case beside another. ratio and target: None where there is nothing to say.

    A target without an `against` is one of the value itself.
    """

    what: str
    unit: str
    value: float
    against: str | None = None
    other: float | None = None
    ratio: float | None = None
    target: Target | None = None

    @property
    def met(self) -> bool | None:
        bound = self.value if self.against is None else self.ratio
        return None if self.target is None or bound is None else self.target.met(bound)

    def cells(self) -> tuple[str, ...]:
        verdict = {True: "met", False: "MISSED", None: ""}[self.met]
        numbers = ["" if number is None else shown(number) for number in (self.value, self.other, self.ratio)]
        target = str(self.target or "")
        return self.what, self.unit, numbers[0], self.against or "", numbers[1], numbers[2], target, verdict


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median of the rounds' ratios; a round that only one of them ended does not count."""
    return statistics.median(a / b for a, b in zip(over, under, strict=False))


def compare(
    what: str, unit: str, of: str, figures: Figures, targets: Mapping[str | None, Target]
) -> Iterable[Comparison]:
    """A line for each other figure; targets by the figure they compare with, None for one of the value itself."""
    if not figures.get(of):
        return
    value = statistics.median(figures[of])
    others = {who: found for who, found in figures.items() if who != of and found}
    if not others or None in targets:
        yield Comparison(what, unit, value, target=targets.get(None))
    for who, found in others.items():
        yield Comparison(
            what, unit, value, who, statistics.median(found), ratio(figures[of], found), targets.get(who)
        )  # fmt: skip


def shown(number: float) -> str:
    """Three digits that count, and no fraction from a hundred on."""
    size = abs(number)
    return f"{number:.0f}" if size >= 100 else f"{number:.1f}" if size >= 10 else f"{number:.3g}"


def table(lines: Sequence[Comparison]) -> str:
    """Columns as wide as they must be; what stands above is not said again."""
    rows = [HEADINGS, *(line.cells() for line in lines)]
    shorter = [rows[0]] + [("", "", "", *row[3:]) if row[:3] == above[:3] else row for above, row in pairwise(rows)]
    widths = [max(map(len, column)) for column in zip(*shorter, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if i in (2, 4, 5) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in shorter
    )


def as_json(line: Comparison) -> dict[str, Any]:
    """A line for programs: numbers as they are, to four digits."""
    numbers = {"value": line.value, "other": line.other, "ratio": line.ratio}
    return (
        {"what": line.what, "unit": line.unit, "against": line.against, "target": line.target and str(line.target)}
        | {name: None if number is None else float(f"{number:.4g}") for name, number in numbers.items()}
        | {"met": line.met}
    )
