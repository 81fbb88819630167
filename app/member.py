"""A model that may be asked for: its names, how it stands with it, who uses it and who waits for it.

Owns the state of one. Who comes and who leaves is the roster's.
"""

import asyncio
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from app.errors import SegueError


class Tenant(Protocol):
    """What a loaded model is to the roster. n_bytes: the memory that it takes."""

    @property
    def n_bytes(self) -> int: ...

    def start(self) -> None:
        """Begin to work. Called once, on the event loop."""

    async def close(self) -> None:
        """Stop working. May be called again."""


T = TypeVar("T", bound=Tenant)


class State(StrEnum):
    """How it stands with a member. LOADING: asked for, and not there yet.

    FAILED: the last load came to nothing; the next request tries again.
    """

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"


class Arrival:
    """A model that was sent for. outcome: None where it came, else the error for all who wait.

    is_certain: whether it comes even if nobody waits any more.
    """

    def __init__(self) -> None:
        self.outcome: asyncio.Future[SegueError | None] = asyncio.get_running_loop().create_future()
        self.n_waiting = 0
        self.is_certain = False
        self.task: asyncio.Task[None] | None = None


class Member(Generic[T]):
    """A model that may be asked for, by any of its names; the first is its id.

    n_bytes: what it takes, an estimate until it has been loaded. idle_seconds: how long it stays with nothing to do;
    None: until its room is wanted. tenant: the model itself, if it is loaded already.
    """

    def __init__(
        self, names: tuple[str, ...], n_bytes: int, idle_seconds: float | None = None, tenant: T | None = None
    ) -> None:
        self.names = names
        self.n_bytes = tenant.n_bytes if tenant else n_bytes
        self.idle_seconds = idle_seconds
        self.tenant = tenant
        self.arrival: Arrival | None = None
        self.is_leaving = False
        self.has_failed = False
        self.last_asked = 0
        self.n_users = 0
        self.is_free = asyncio.Event()
        """Set while it has no users."""
        self.is_free.set()
        self.clock: asyncio.TimerHandle | None = None

    @property
    def id(self) -> str:
        return self.names[0]

    @property
    def is_open(self) -> bool:
        """Whether it can be had at once."""
        return self.tenant is not None and not self.is_leaving

    @property
    def n_waiting(self) -> int:
        """Requests that wait for it."""
        return self.arrival.n_waiting if self.arrival else 0

    def leave(self) -> None:
        """Forget the tenant, which has been closed."""
        self.tenant = None

    @property
    def state(self) -> State:
        if self.tenant is not None:
            return State.LOADED
        if self.arrival:
            return State.LOADING
        return State.FAILED if self.has_failed else State.UNLOADED
