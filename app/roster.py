"""Who is there: the models that may be asked for, those that are loaded, who waits for one, and who has to leave.

Owns the rules: one load for all who wait for it, loads one after another in the order in which they were asked for, a
budget of memory, lines with an end. Refuses to know HTTP, llama.cpp, and what loading is: it is handed in. Everything
here happens on one event loop, and what needs no waiting is done without an `await`, so that nothing comes between.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from collections.abc import Sequence as Ordered
from typing import Generic

from app.errors import ModelNotFound, Overloaded, SegueError, Unavailable, Unloadable
from app.member import Arrival, Member, T

logger = logging.getLogger("segue.roster")


class Roster(Generic[T]):
    """The members, and their coming and going. The first is the one that is meant where none is named."""

    def __init__(
        self,
        members: Iterable[Member[T]],
        load: Callable[[Member[T]], Awaitable[T]],
        budget: int,
        max_waiting: int,
        sweep: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """load: raises SegueError; cancelled, it undoes what it began. budget: bytes that all together may take.

        A member that alone takes more is loaded when nobody else is there. max_waiting: requests that may wait for
        one member. sweep: called when one has left, to give the system back what it held.
        """
        self.members: Ordered[Member[T]] = tuple(members)
        self._by_name = {name: member for member in self.members for name in member.names}
        self._load = load
        self._budget = budget
        self._max_waiting = max_waiting
        self._sweep = sweep
        self._turn = asyncio.Lock()
        """Held by whoever comes or goes: one at a time, in the order in which they were asked to."""
        self._goodbyes: set[asyncio.Task[None]] = set()
        self._n_asked = 0
        self._is_closing = False

    def find(self, name: str | None) -> Member[T]:
        """The member of that name. Raises ModelNotFound."""
        if not name:
            return self.members[0]
        if member := self._by_name.get(name):
            return member
        served = ", ".join(self._by_name)
        raise ModelNotFound(f"The model {name[:200]!r} is not served here. Served: {served}.", "model")

    def start(self) -> None:
        """Let those begin that are there already. Called on the event loop."""
        for member in self.members:
            if member.tenant is not None:
                member.tenant.start()
                self._admit(member, 0)

    async def take(self, member: Member[T]) -> T:
        """The member's tenant, loaded if need be: it stays until it is released as often as it was taken.

        Raises Overloaded where too many wait for it already, Unloadable where it cannot be loaded.
        """
        if self._is_closing:
            raise _stopping()
        if member.is_open:
            self._admit(member, 1)
        else:
            await self._wait(member)
        assert member.tenant is not None
        return member.tenant

    def release(self, member: Member[T]) -> None:
        """Give back what was taken once."""
        member.n_users -= 1
        if not member.n_users:
            member.is_free.set()
            self._start_clock(member)

    async def close(self) -> None:
        """Let nobody come any more, and stop all who are there; those who wait are told. May be called again."""
        self._is_closing = True
        tasks = [member.arrival.task for member in self.members if member.arrival and member.arrival.task]
        for task in (*tasks, *self._goodbyes):
            task.cancel()
        await asyncio.gather(*tasks, *self._goodbyes, return_exceptions=True)
        for member in self.members:
            self._stop_clock(member)
            if member.arrival:  # its task was cancelled before it had begun
                self._arrive(member, member.arrival, _stopping())
        await asyncio.gather(*(member.tenant.close() for member in self._loaded if member.tenant))

    @property
    def _loaded(self) -> list[Member[T]]:
        return [member for member in self.members if member.tenant is not None]

    @property
    def _n_used(self) -> int:
        """Bytes that those who are there take."""
        return sum(member.n_bytes for member in self._loaded)

    def _admit(self, member: Member[T], n_users: int) -> None:
        """Let so many more use a member that is there; those who have waited have it before they wake."""
        self._n_asked += 1
        member.last_asked = self._n_asked
        member.n_users += n_users
        if member.n_users:
            member.is_free.clear()
            self._stop_clock(member)
        else:
            self._start_clock(member)

    async def _wait(self, member: Member[T]) -> None:
        """Stand in a member's line until it is there for whoever waits."""
        if member.n_waiting >= self._max_waiting:
            raise Overloaded(
                f"The line of requests that wait for {member.id} is full: it takes {self._max_waiting} (--max-waiting)."
            )
        arrival = member.arrival or self._send_for(member)
        arrival.n_waiting += 1
        try:
            error = await asyncio.shield(arrival.outcome)
        except asyncio.CancelledError:
            self._step_out(member, arrival)
            raise
        if error:
            raise error

    def _step_out(self, member: Member[T], arrival: Arrival) -> None:
        """One who waited has left: what came for it is given back, and what comes for nobody is called off."""
        if arrival.outcome.done():
            if arrival.outcome.result() is None:
                self.release(member)
            return
        arrival.n_waiting -= 1
        if not arrival.n_waiting and not arrival.is_certain and arrival.task:
            member.arrival = None  # who comes now has one of his own
            arrival.task.cancel()

    def _send_for(self, member: Member[T]) -> Arrival:
        arrival = member.arrival = Arrival()
        arrival.task = asyncio.get_running_loop().create_task(self._bring(member, arrival))
        return arrival

    async def _bring(self, member: Member[T], arrival: Arrival) -> None:
        """Have a member come, and tell those who wait. It may still be there: who was to leave was let off."""
        error: SegueError | None = _stopping()
        try:
            async with self._turn:
                if member.tenant is None:
                    await self._make_room(member, arrival)
                    member.tenant = await self._load(member)
                    member.n_bytes = member.tenant.n_bytes
                    member.tenant.start()
                    await self._make_up_for(member)
            error = None
        except SegueError as found:
            error = Unloadable(f"The model {member.id} cannot be loaded: {found.message}")
        except Exception:
            logger.exception("loading %s failed", member.id)
            error = Unloadable(f"The model {member.id} cannot be loaded: a fault of the server.")
        finally:
            self._arrive(member, arrival, error)

    def _arrive(self, member: Member[T], arrival: Arrival, error: SegueError | None) -> None:
        """The end of an arrival, whatever came of it; one that was called off is forgotten already."""
        if member.arrival is not arrival:
            return
        member.arrival = None
        member.has_failed = isinstance(error, Unloadable)
        if member.has_failed:
            logger.warning("%s", error)
        if error is None:
            self._admit(member, arrival.n_waiting)
        arrival.outcome.set_result(error)

    async def _make_room(self, member: Member[T], arrival: Arrival) -> None:
        """See others out until there is room for a member, or nobody is left."""
        while self._n_used + member.n_bytes > self._budget and (leaver := self._next_leaver()):
            leaver.is_leaving = True
            try:
                await leaver.is_free.wait()
            except asyncio.CancelledError:
                self._stay(leaver)
                raise
            arrival.is_certain = True
            await self._retire(leaver)
        arrival.is_certain = True

    def _stay(self, member: Member[T]) -> None:
        """A member that was to leave has left, or is let off."""
        member.is_leaving = False
        if member.is_free.is_set():
            self._start_clock(member)

    async def _make_up_for(self, member: Member[T]) -> None:
        """Where a member has turned out to be larger than it was thought: let those leave who have nothing to do."""
        while self._n_used > self._budget and (leaver := self._next_leaver(member)) and leaver.is_free.is_set():
            await self._retire(leaver)

    def _next_leaver(self, stays: Member[T] | None = None) -> Member[T] | None:
        """Who leaves first: whoever has nothing to do, then whoever was asked for longest ago."""
        others = [member for member in self._loaded if member is not stays]
        return min(others, key=lambda member: (member.n_users > 0, member.last_asked), default=None)

    async def _retire(self, member: Member[T]) -> None:
        """Close a member that has nothing to do, and forget its tenant. Who asks for it meanwhile waits."""
        assert member.tenant is not None
        member.is_leaving = True
        self._stop_clock(member)
        try:
            await member.tenant.close()
            member.leave()
        finally:
            self._stay(member)
        logger.info("unloaded %s", member.id)
        if self._sweep:
            await self._sweep()

    def _start_clock(self, member: Member[T]) -> None:
        if member.idle_seconds is not None and member.is_open and not self._is_closing:
            loop = asyncio.get_running_loop()
            member.clock = loop.call_later(member.idle_seconds, self._dismiss, member)

    def _stop_clock(self, member: Member[T]) -> None:
        if member.clock:
            member.clock.cancel()
            member.clock = None

    def _dismiss(self, member: Member[T]) -> None:
        """Its time with nothing to do is over."""
        member.clock = None
        task = asyncio.get_running_loop().create_task(self._let_go(member))
        self._goodbyes.add(task)
        task.add_done_callback(self._goodbyes.discard)

    async def _let_go(self, member: Member[T]) -> None:
        """Let a member leave, unless it was asked for meanwhile: then it has users, or its clock runs anew."""
        async with self._turn:
            if member.is_open and member.is_free.is_set() and member.clock is None:
                await self._retire(member)


def _stopping() -> Unavailable:
    return Unavailable("The server is shutting down.")
