"""What the engine has done so far, in plain numbers.

Owns the counts and the buckets of its times; refuses to know who reads them, and in which format. The engine's thread
counts, any thread may read: a number may be a step old, none is torn.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from time import perf_counter

BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper ends of the buckets that times are counted in, in seconds; one more bucket has no end."""


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

    n_running: int
    n_waiting: int
    n_cells_running: int
    n_cells_cached: int
    n_cells_free: int
    n_preempted: int
    n_faults: int
    steps: dict[str, Times]
