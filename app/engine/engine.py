"""The thread that owns the backend, and the way to it and back.

Commands go in by an inbox; a step's outcomes come back to the event loop in one call. Owns the thread's life; refuses
to know what a step does.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Hashable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from queue import SimpleQueue
from time import monotonic

from app.engine.backend import Backend
from app.engine.batcher import Batcher, Outcome
from app.engine.events import Event, Finished
from app.engine.params import Job
from app.engine.scheduler import Budget
from app.engine.stats import PARTS, Snapshot
from app.errors import GenerationFailed, Overloaded, SegueError, Unavailable

logger = logging.getLogger("segue.engine")


class Run:
    """One request's jobs in the engine, as the event loop sees them. Iterate over `steps` once, or `cancel`."""

    def __init__(self, jobs: Ordered[Job], cancel: Callable[["Run"], None]) -> None:
        self.jobs = jobs
        self.has_started = False
        self.is_over = False
        self._n_unfinished = sum(job.n_candidates for job in jobs)
        self._cancel = cancel
        self._steps: asyncio.Queue[list[Event] | SegueError] = asyncio.Queue()

    async def steps(self) -> AsyncGenerator[list[Event], None]:
        """The events of each step, until the last candidate has finished. Leaving early cancels.

        Raises GenerationFailed or Unavailable where the engine could not go on with it.
        """
        try:
            while not (self.is_over and self._steps.empty()):
                step = await self._steps.get()
                if isinstance(step, SegueError):
                    raise step
                yield step
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Let the engine forget this run by its next step. Harmless after the end."""
        if not self.is_over:
            self.is_over = True
            self._cancel(self)

    def expire(self, error: SegueError) -> None:
        """End with an error, and let the engine forget this run. Harmless after the end."""
        if not self.is_over:
            self.cancel()
            self.fail(error)

    def deliver(self, outcomes: list[Outcome]) -> None:
        """Take a step's outcomes. Called on the event loop."""
        self.has_started = True
        events = []
        for outcome in outcomes:
            if isinstance(outcome, GenerationFailed):
                self.fail(outcome)
                return
            self._n_unfinished -= isinstance(outcome, Finished)
            events.append(outcome)
        self.is_over = self._n_unfinished == 0
        self._steps.put_nowait(events)

    def fail(self, error: SegueError) -> None:
        """End with an error. Called on the event loop."""
        self.is_over = True
        self._steps.put_nowait(error)


@dataclass(frozen=True, slots=True, eq=False)
class Submit:
    run: Run


@dataclass(frozen=True, slots=True, eq=False)
class Cancel:
    run: Run


@dataclass(frozen=True, slots=True)
class Close:
    pass


class Engine:
    """Runs a Batcher in a thread of its own. `start`, `submit` and `close` are called on one event loop."""

    def __init__(
        self,
        backend: Backend,
        budget: Budget,
        max_waiting: int,
        *,
        keeps: bool = False,
        drafts: bool = False,
        n_threads: int = 1,
        patience: float,
    ) -> None:
        """keeps, drafts, n_threads: as a Batcher has them. patience: seconds that a step may take."""
        self._backend = backend
        self._batcher = Batcher(backend, budget, keeps=keeps, drafts=drafts, n_threads=n_threads)
        self._budget = budget
        self._max_waiting = max_waiting
        self._inbox: SimpleQueue[Submit | Cancel | Close] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="segue-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._patience = patience
        self._step_began: float | None = None
        self._watch: asyncio.Task[None] | None = None
        self._live: dict[Hashable, Run] = {}
        self._is_closing = False
        self._has_died = False

    @property
    def is_healthy(self) -> bool:
        """Whether a token could be generated now."""
        return self._thread.is_alive() and not (self._is_closing or self._has_died or self.is_stuck)

    @property
    def is_stuck(self) -> bool:
        """Whether a step has been going on for longer than one may."""
        began = self._step_began
        return began is not None and monotonic() - began > self._patience

    @property
    def n_waiting(self) -> int:
        """Requests of which nothing has run yet."""
        return sum(not run.has_started for run in self._live.values())

    @property
    def n_running(self) -> int:
        """Sequences that hold a slot, as of the last step."""
        return self._batcher.n_running

    @property
    def n_cells_used(self) -> int:
        return self._batcher.n_cells_used

    def snapshot(self) -> Snapshot:
        """How it stands, without waiting for a step."""
        batcher, n_cells, n_used = self._batcher, self._backend.limits.n_cells, self.n_cells_used
        n_cells_running = min(batcher.n_cells_running, n_used)
        return Snapshot(
            n_running=batcher.n_running,
            n_waiting=self.n_waiting,
            n_cells_running=n_cells_running,
            n_cells_cached=n_used - n_cells_running,
            n_cells_free=n_cells - n_used,
            n_preempted=batcher.n_preempted,
            n_faults=batcher.stats.n_faults,
            steps={part: getattr(batcher.stats, part).copy() for part in PARTS},
        )

    def start(self) -> None:
        """Start the thread; outcomes go to the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self._watch = self._loop.create_task(self._watch_over())

    async def _watch_over(self) -> None:
        """Tell those who wait for a step that does not end. Should it end after all, it goes on without them."""
        while True:
            await asyncio.sleep(self._patience / 8)
            if self.is_stuck and self._live:
                logger.error("a step has been going on for more than %g s; its requests fail", self._patience)
                for run in list(self._live.values()):
                    run.expire(Unavailable(f"The engine is stuck in a step of more than {self._patience:g} s."))

    def submit(self, jobs: Ordered[Job], *, queues: bool = True) -> Run:
        """Queue the jobs of one request. Raises Overloaded where the line is full, Unavailable where none is taken.

        queues: off for more work of a request that was taken already, which no full line may turn away.
        """
        if not self.is_healthy:
            raise Unavailable(
                "The server is shutting down." if self._is_closing else "The engine has stopped, or hangs."
            )
        n_idle = self._budget.n_parallel - self.n_running
        if queues and self.n_waiting >= self._max_waiting + n_idle:
            raise Overloaded(f"The waiting line is full: it takes {self._max_waiting} requests (--max-waiting).")
        run = Run(jobs, self._cancel)
        self._live[run] = run
        self._inbox.put(Submit(run))
        return run

    def _cancel(self, run: Run) -> None:
        self._live.pop(run, None)
        self._inbox.put(Cancel(run))

    async def close(self) -> None:
        """Stop after the current step; whatever is unfinished fails with Unavailable. May be called again.

        A step that hangs is left to itself, and the backend with it.
        """
        self._is_closing = True
        self._inbox.put(Close())
        if self._watch:
            self._watch.cancel()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, 0 if self.is_stuck else self._patience)
        self._fail_all()
        if not self._thread.is_alive():
            await asyncio.to_thread(self._backend.close)  # gigabytes take a while, and others may be served

    def _fail_all(self) -> None:
        for run in list(self._live.values()):
            run.fail(Unavailable("The server stopped before this request was finished."))
        self._live.clear()

    def _deliver(self, step: list[tuple[Hashable, list[Outcome]]]) -> None:
        """Hand a step's outcomes to their runs. Called on the event loop, once a step."""
        for owner, outcomes in step:
            if run := self._live.get(owner):
                run.deliver(outcomes)
                if run.is_over:
                    del self._live[owner]

    def _work(self) -> None:
        try:
            while self._receive():
                self._step_began = monotonic()
                step = self._batcher.step()
                self._step_began = None
                if step:
                    self._loop.call_soon_threadsafe(self._deliver, step)
        except Exception:
            logger.exception("the engine has stopped")
            self._batcher.stats.n_faults += 1
            self._has_died, self._step_began = True, None
            self._loop.call_soon_threadsafe(self._fail_all)

    def _receive(self) -> bool:
        """Take what has come in, waiting for it where there is nothing else to do; False at the end."""
        while self._batcher.is_idle or not self._inbox.empty():
            match self._inbox.get():
                case Submit(run):
                    self._batcher.submit(run, run.jobs)
                case Cancel(run):
                    self._batcher.cancel(run)
                case Close():
                    return False
        return True
