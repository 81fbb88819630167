"""Several samplers, a thread each: while rows are worked on, no model computes, and all processors are free.

Owns how rows are shared out. What is done to them is the sampler's: how many samplers there are changes no result.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from app.engine.logprobs import RowScores
from app.engine.sampler import Drawn, Sampler, Want
from app.engine.weights import Rows

MOST = 8
"""Memory is what limits them: more do not get more of it."""

Result = TypeVar("Result")


class Crew:
    """Draws and scores as a Sampler does. One caller at a time."""

    def __init__(self, n_vocab: int, n_threads: int) -> None:
        n = max(min(n_threads, MOST), 1)
        self._samplers = [Sampler(n_vocab) for _ in range(n)]
        self._threads = ThreadPoolExecutor(n, thread_name_prefix="segue-sampler")

    def sample(self, rows: Rows, wants: list[Want]) -> list[Drawn]:
        """As `Sampler.sample`."""
        return self._share(len(wants), lambda sampler, part: sampler.sample(rows, wants[part]))

    def scores(self, rows: Rows, n_top: int) -> list[RowScores]:
        """As `Sampler.scores`."""
        return self._share(len(rows), lambda sampler, part: sampler.scores(rows[part], n_top))

    def _share(self, n: int, do: Callable[[Sampler, slice], list[Result]]) -> list[Result]:
        """The results of n pieces of work, in order. Raises what the first part to fail raises, when all have ended."""
        first, *others = self._parts(n)
        if not others:
            return do(self._samplers[0], first)
        tasks = [self._threads.submit(do, *each) for each in zip(self._samplers[1:], others, strict=False)]
        try:
            results = do(self._samplers[0], first)
        finally:
            wait(tasks)  # the next decode overwrites their rows
        return results + [result for task in tasks for result in task.result()]

    def _parts(self, n: int) -> list[slice]:
        """A part for each sampler, but none smaller than what it takes at once."""
        size = max(-(-n // len(self._samplers)), self._samplers[0].n_at_once)
        return [slice(start, start + size) for start in range(0, max(n, 1), size)]
