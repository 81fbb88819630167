"""What the engine has done so far, in plain numbers.

Owns the counts and the buckets of its times; refuses to know who reads them, and in which format. The engine's thread
counts, any thread may read: a number may be a step old, none is torn.
"""

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from time import perf_counter

BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper ends of the buckets that times are counted in, in seconds; one more bucket has no end."""
PARTS = ("plan", "decode", "sample")
"""Of a step, in their order."""


@dataclass(slots=True)
class Times:
    """How long something took, each time that it was done. n_within[i]: times within BOUNDS[i] and no bound before."""

    n_within: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    seconds: float = 0.0

    def observe(self, seconds: float) -> None:
        self.n_within[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    def copy(self) -> "Times":
        return Times(list(self.n_within), self.seconds)

    def __add__(self, other: "Times") -> "Times":
        n_within = [mine + theirs for mine, theirs in zip(self.n_within, other.n_within, strict=True)]
        return Times(n_within, self.seconds + other.seconds)


class Stats:
    """Counted as the engine goes on. `begin` a step, then `lap` after each of its parts."""

    def __init__(self) -> None:
        self.plan = Times()
        self.decode = Times()
        self.sample = Times()
        self.n_faults = 0
        """Requests that a fault of the engine has cost."""
        self._lap_began = 0.0

    def begin(self) -> None:
        self._lap_began = perf_counter()

    def lap(self, part: Times) -> None:
        """Count the time since the last lap as time of this part."""
        now = perf_counter()
        part.observe(now - self._lap_began)
        self._lap_began = now


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine at one moment.

    n_running: sequences that hold a slot. n_waiting: requests of which nothing has run. n_cells_running: cells that
    those sequences hold, n_cells_cached: that only ended ones do. steps: the times of each part of a step.
    """

    n_running: int = 0
    n_waiting: int = 0
    n_cells_running: int = 0
    n_cells_cached: int = 0
    n_cells_free: int = 0
    n_preempted: int = 0
    n_faults: int = 0
    steps: dict[str, Times] = field(default_factory=lambda: {part: Times() for part in PARTS})

    def after(self, earlier: "Snapshot") -> "Snapshot":
        """This moment, with what an earlier engine had counted in its counts."""
        return replace(
            self,
            n_preempted=self.n_preempted + earlier.n_preempted,
            n_faults=self.n_faults + earlier.n_faults,
            steps={part: times + earlier.steps[part] for part, times in self.steps.items()},
        )
