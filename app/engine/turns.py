"""Engines that compute in turns: a decode takes all processors, so that two at once would be in each other's way.

Owns the one thread that computes for all engines of a process, a step at a time, in the order in which they ask. One
thread, rather than a lock: libgomp keeps its helpers of every thread that has ever computed, and with more of them
than processors it lets those that do compute sleep at each barrier (docs/measurements.md).
"""

import threading
from collections.abc import Callable
from collections.abc import Sequence as Ordered
from concurrent.futures import Future
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import Backend, Chunk, Limits

Rows = NDArray[np.float32]


class Turns:
    """The thread. It ends with the process: a decode that hangs is left to itself."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Future[Rows], Callable[[], Rows]]] = SimpleQueue()
        threading.Thread(target=self._work, name="segue-compute", daemon=True).start()

    def do(self, work: Callable[[], Rows]) -> Rows:
        """What `work` returns or raises, when its turn has come."""
        done: Future[Rows] = Future()
        self._asked.put((done, work))
        return done.result()

    def _work(self) -> None:
        while True:
            done, work = self._asked.get()
            try:
                done.set_result(work())
            except Exception as error:  # noqa: BLE001  # raised where it was asked for
                done.set_exception(error)
            del done, work  # or what they hold would stay until the next turn


class InTurn:
    """A backend whose decodes take turns with those of others; fulfils `Backend`. The rest takes no time."""

    def __init__(self, backend: Backend, turns: Turns) -> None:
        self._backend = backend
        self._turns = turns
        self.limits: Limits = backend.limits
        self.fork = backend.fork
        self.cut = backend.cut
        self.drop = backend.drop
        self.piece = backend.piece
        self.close = backend.close

    def decode(self, chunks: Ordered[Chunk]) -> Rows:
        """Read the chunks in one pass; see `Backend.decode`."""
        return self._turns.do(lambda: self._backend.decode(chunks))
