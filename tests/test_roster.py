"""The roster's rules, with models that are nothing but a size: who is loaded, who waits, who leaves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from app.errors import ModelError, ModelNotFound, Overloaded, SegueError, Unavailable, Unloadable
from app.member import Member, State
from app.roster import Roster

PATIENCE = 20.0


@dataclass(eq=False)
class Model:
    """A loaded model. gate: closing waits for it."""

    id: str
    n_bytes: int
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    has_begun: bool = False
    n_closed: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    def start(self) -> None:
        self.has_begun = True

    async def close(self) -> None:
        await self.gate.wait()
        self.n_closed += 1


class Site:
    """A roster of models of sizes, and what was done. A load waits for `gate`; `faults` are raised in its place.

    beside: how many were loaded when each load began.
    """

    def __init__(self, budget: int = 100, max_waiting: int = 8, idle: float | None = None, **sizes: int) -> None:
        self.loads: list[str] = []
        self.beside: list[int] = []
        self.models: dict[str, Model] = {}
        self.sizes = sizes
        self.faults: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.n_swept = 0
        self.swept = asyncio.Event()
        self.called_off: list[str] = []
        members: list[Member[Model]] = [Member((name, f"{name}-alias"), size, idle) for name, size in sizes.items()]
        self.roster = Roster(members, self._load, budget, max_waiting, self._sweep)

    async def _load(self, member: Member[Model]) -> Model:
        self.loads.append(member.id)
        self.beside.append(len(self.loaded))
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.called_off.append(member.id)
            raise
        if self.faults:
            raise self.faults.pop()
        model = self.models[member.id] = Model(member.id, self.sizes[member.id])
        return model

    async def _sweep(self) -> None:
        self.n_swept += 1
        self.swept.set()

    def __getitem__(self, name: str) -> Member[Model]:
        return self.roster.find(name)

    @property
    def loaded(self) -> set[str]:
        return {member.id for member in self.roster.members if member.state is State.LOADED}

    @asynccontextmanager
    async def use(self, member: Member[Model]) -> AsyncIterator[Model]:
        model = await self.roster.take(member)
        try:
            yield model
        finally:
            self.roster.release(member)

    def ask(self, name: str) -> "asyncio.Task[Model]":
        return asyncio.ensure_future(self.roster.take(self[name]))

    async def visit(self, *names: str) -> None:
        """Ask for each, and be done with it."""
        for name in names:
            async with self.use(self[name]) as model:
                assert model.id == name
                assert model.has_begun
                assert not model.n_closed


async def settle() -> None:
    """Let everybody do what can be done without an event from outside."""
    for _ in range(50):
        await asyncio.sleep(0)


@asynccontextmanager
async def soon() -> AsyncIterator[None]:
    async with asyncio.timeout(PATIENCE):
        yield


async def failure(task: Awaitable[object]) -> SegueError:
    with pytest.raises(SegueError) as raised:
        await task
    return raised.value


async def test_a_model_is_found_by_each_name_and_the_first_where_none_is_named() -> None:
    site = Site(a=1, b=1)
    assert site["b"] is site["b-alias"] is site.roster.members[1]
    assert site.roster.find(None) is site.roster.find("") is site["a"]
    with pytest.raises(ModelNotFound, match=r"'c' is not served here. Served: a, a-alias, b, b-alias\.") as raised:
        site.roster.find("c")
    assert raised.value.param == "model"


async def test_the_first_who_asks_has_it_loaded_and_those_who_come_then_find_it() -> None:
    site = Site(a=1, b=1)
    assert site.loaded == set()
    assert site["a"].state is State.UNLOADED
    await site.visit("a", "a", "a")
    assert site.loads == ["a"]
    assert site.loaded == {"a"}


async def test_all_who_ask_while_it_loads_wait_for_one_load() -> None:
    site = Site(a=1)
    site.gate.clear()
    tasks = [site.ask("a") for _ in range(5)]
    await settle()
    assert site["a"].state is State.LOADING
    assert site["a"].n_waiting == 5
    site.gate.set()
    assert len({id(model) for model in await asyncio.gather(*tasks)}) == 1
    assert site.loads == ["a"]
    assert (site["a"].n_users, site["a"].n_waiting) == (5, 0)


@pytest.mark.parametrize("leaver", [0, 2, 4])
async def test_one_who_leaves_the_line_harms_nobody(leaver: int) -> None:
    site = Site(a=1)
    site.gate.clear()
    tasks = [site.ask("a") for _ in range(5)]
    await settle()
    tasks.pop(leaver).cancel()
    await settle()
    assert site["a"].n_waiting == 4
    site.gate.set()
    await asyncio.gather(*tasks)
    assert (site.loads, site.called_off, site["a"].n_users) == (["a"], [], 4)


async def test_a_load_goes_on_though_all_who_waited_have_left_and_serves_the_next() -> None:
    site = Site(a=1)
    site.gate.clear()
    task = site.ask("a")
    await settle()
    task.cancel()
    await settle()
    site.gate.set()
    await site.visit("a")
    assert (site.loads, site.called_off) == (["a"], [])


async def test_one_who_leaves_just_when_it_has_come_does_not_keep_it() -> None:
    """Whoever waited has it before he wakes; it must be given back for him."""
    site = Site(budget=1, a=1, b=1)
    site.gate.clear()
    task = site.ask("a")
    await settle()
    arrival = site["a"].arrival
    assert arrival
    arrival.outcome.add_done_callback(lambda _: task.cancel())
    site.gate.set()
    await settle()
    assert task.cancelled()
    assert site["a"].n_users == 0
    async with soon():
        await site.visit("b")


async def test_a_load_that_fails_tells_all_who_wait_and_the_next_may_try_again() -> None:
    site = Site(a=1)
    site.gate.clear()
    tasks = [site.ask("a") for _ in range(3)]
    await settle()
    site.faults = [ModelError("a.gguf: this file is empty.")]
    site.gate.set()
    errors = [await failure(task) for task in tasks]
    assert {type(error) for error in errors} == {Unloadable}
    assert errors[0].message == "The model a cannot be loaded: a.gguf: this file is empty."
    assert site["a"].state is State.FAILED
    await site.visit("a")
    assert site.loaded == {"a"}
    assert site.loads == ["a", "a"]


async def test_a_fault_in_a_load_is_told_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    site = Site(a=1)
    site.faults = [ZeroDivisionError("a secret")]
    error = await failure(site.ask("a"))
    assert isinstance(error, Unloadable)
    assert "secret" not in error.message
    assert "secret" in caplog.text
    await site.visit("a")


async def test_models_are_loaded_one_after_another_as_they_were_asked_for() -> None:
    site = Site(a=1, b=1, c=1)
    site.gate.clear()
    tasks = [site.ask(name) for name in ("b", "c", "a")]
    await settle()
    assert site.loads == ["b"]
    site.gate.set()
    await asyncio.gather(*tasks)
    assert site.loads == ["b", "c", "a"]


async def test_whoever_was_asked_for_longest_ago_leaves_and_no_more_than_must() -> None:
    site = Site(budget=3, a=1, b=1, c=1, d=1)
    await site.visit("a", "b", "c", "a")
    await site.visit("d")
    assert site.loaded == {"a", "c", "d"}
    assert site.models["b"].n_closed == 1
    assert site.n_swept == 1
    await site.visit("b")
    assert site.loaded == {"a", "b", "d"}


async def test_a_large_one_sees_several_out() -> None:
    site = Site(budget=4, a=1, b=1, c=1, d=3)
    await site.visit("a", "b", "c", "d")
    assert site.loaded == {"c", "d"}
    assert site.beside == [0, 1, 2, 1], "they have left before it comes"


async def test_one_who_is_larger_than_the_budget_is_loaded_when_nobody_else_is_there() -> None:
    site = Site(budget=4, a=1, b=1, c=9)
    await site.visit("a", "b", "c")
    assert site.loaded == {"c"}
    await site.visit("a")
    assert site.loaded == {"a"}


async def test_one_with_work_stays_and_another_leaves_though_it_was_asked_for_later() -> None:
    site = Site(budget=2, a=1, b=1, c=1)
    async with site.use(site["a"]) as working:
        await site.visit("b", "c")
        assert site.loaded == {"a", "c"}
        assert not working.n_closed


async def test_where_all_have_work_who_comes_waits_for_its_end() -> None:
    site = Site(budget=1, a=1, b=1)
    await site.roster.take(site["a"])
    await site.roster.take(site["a"])
    task = site.ask("b")
    await settle()
    assert (site.loads, site["b"].state, site["a"].state) == (["a"], State.LOADING, State.LOADED)
    site.roster.release(site["a"])
    await settle()
    assert not site.models["a"].n_closed
    site.roster.release(site["a"])
    async with soon():
        await task
    assert site.loaded == {"b"}


async def test_who_comes_for_one_that_is_to_leave_is_served_after_those_who_came_before_him() -> None:
    """Else a model that is always asked for would never leave, and another's line would stand for ever."""
    site = Site(budget=1, a=1, b=1)
    await site.roster.take(site["a"])
    first = site.ask("b")
    await settle()
    second = site.ask("a")
    await settle()
    assert not second.done()
    site.roster.release(site["a"])
    async with soon():
        assert (await first).id == "b"
        site.roster.release(site["b"])
        assert (await second).id == "a"
    assert site.loads == ["a", "b", "a"]


async def test_one_that_was_to_leave_stays_when_nobody_waits_for_its_room_any_more() -> None:
    site = Site(budget=1, a=1, b=1)
    await site.roster.take(site["a"])
    task = site.ask("b")
    await settle()
    follower = site.ask("a")
    await settle()
    task.cancel()
    async with soon():
        await follower
    assert site.loads == ["a"]
    assert site["b"].state is State.UNLOADED
    assert site["a"].n_users == 2


async def test_who_comes_just_when_the_last_of_a_line_has_left_has_a_load_of_his_own() -> None:
    site = Site(budget=1, a=1, b=1)
    async with site.use(site["a"]):
        leaving = site.ask("b")
        await settle()
        leaving.cancel()
        coming = site.ask("b")
        await settle()
        assert not coming.done(), "nobody has told him that the server is shutting down"
    async with soon():
        assert (await coming).id == "b"
    assert site.loads == ["a", "b"]


async def test_one_that_is_let_off_when_its_work_is_over_has_its_time_again() -> None:
    """The last who waits for its room leaves in the moment in which it has nothing to do any more."""
    site = Site(budget=1, idle=PATIENCE, a=1, b=1)
    await site.roster.take(site["a"])
    task = site.ask("b")
    await settle()
    task.cancel()
    site.roster.release(site["a"])
    await settle()
    assert site["a"].state is State.LOADED
    assert site["a"].clock is not None


async def test_one_that_has_just_come_is_not_sent_away_before_those_who_waited_have_had_it() -> None:
    site = Site(budget=1, a=1, b=1)
    site.gate.clear()
    tasks = [site.ask("a"), site.ask("b")]
    await settle()
    site.gate.set()
    await settle()
    assert tasks[0].done()
    assert not tasks[1].done()
    assert not site.models["a"].n_closed
    site.roster.release(site["a"])
    async with soon():
        await tasks[1]


async def test_a_line_has_an_end_and_moves_on() -> None:
    site = Site(max_waiting=2, a=1)
    site.gate.clear()
    tasks = [site.ask("a") for _ in range(2)]
    await settle()
    error = await failure(site.ask("a"))
    assert isinstance(error, Overloaded)
    assert "--max-waiting" in error.message
    tasks.pop().cancel()
    await settle()
    tasks.append(site.ask("a"))
    await settle()
    site.gate.set()
    await asyncio.gather(*tasks)


@pytest.mark.parametrize(("size", "left"), [(3, {"b", "c"}), (9, {"b", "c"})])
async def test_one_that_turns_out_larger_makes_those_leave_that_have_nothing_to_do(size: int, left: set[str]) -> None:
    site = Site(budget=4, a=1, b=1, c=1)
    site.sizes["c"] = size
    async with soon(), site.use(site["b"]) as working:
        await site.visit("a", "c")
        assert site.loaded == left
        assert not working.n_closed
    assert site["c"].n_bytes == size


async def test_one_with_nothing_to_do_leaves_after_its_time_and_comes_again() -> None:
    site = Site(idle=0.001, a=1)
    await site.visit("a")
    async with soon():
        await site.swept.wait()
    assert site["a"].state is State.UNLOADED
    await site.visit("a")
    assert site.loads == ["a", "a"]


async def test_one_with_work_has_no_time_to_leave_at() -> None:
    site = Site(idle=PATIENCE, a=1)
    await site.visit("a")
    async with site.use(site["a"]):
        assert site["a"].clock is None
        await site.visit("a")
        assert site["a"].clock is None
    assert site["a"].clock is not None


async def test_one_that_is_asked_for_when_its_time_is_over_stays() -> None:
    site = Site(idle=PATIENCE, a=1, b=1)
    await site.visit("a")
    site.gate.clear()
    other = site.ask("b")  # nobody comes or goes while it loads
    await settle()
    site.roster._dismiss(site["a"])
    await site.visit("a")
    site.gate.set()
    await other
    await settle()
    assert site.loads == ["a", "b"]
    assert site["a"].state is State.LOADED


async def test_one_that_is_in_use_when_its_time_is_over_stays() -> None:
    site = Site(idle=PATIENCE, a=1, b=1)
    await site.visit("a")
    site.gate.clear()
    other = site.ask("b")
    await settle()
    site.roster._dismiss(site["a"])
    async with site.use(site["a"]) as working:
        site.gate.set()
        await other
        await settle()
        assert not working.n_closed


async def test_no_clock_runs_after_the_end() -> None:
    site = Site(idle=PATIENCE, a=1)
    async with site.use(site["a"]):
        await site.roster.close()
    assert site["a"].clock is None


async def test_who_asks_for_one_that_is_being_closed_waits_and_has_it_anew() -> None:
    site = Site(budget=1, a=1, b=1)
    await site.visit("a")
    site.models["a"].gate.clear()
    other = site.ask("b")
    await settle()
    again = site.ask("a")
    await settle()
    assert not again.done()
    site.models["a"].gate.set()
    async with soon():
        await other
        site.roster.release(site["b"])
        assert (await again).n_closed == 0
    assert site.loads == ["a", "b", "a"]


async def test_those_that_are_there_at_the_start_begin_with_it() -> None:
    model = Model("a", 7)
    roster = Roster([Member(("a",), 1, tenant=model)], _never, 100, 8)
    assert roster.members[0].n_bytes == 7
    assert not model.has_begun
    roster.start()
    assert model.has_begun
    assert await roster.take(roster.members[0]) is model
    await roster.close()


async def _never(_: Member[Model]) -> Model:
    raise AssertionError


async def test_the_end_tells_who_waits_calls_off_a_load_and_closes_all() -> None:
    site = Site(budget=2, a=1, b=1, c=1)
    await site.roster.take(site["a"])
    site.gate.clear()
    waiting = [site.ask("b"), site.ask("b"), site.ask("c")]
    await settle()
    async with soon():
        await site.roster.close()
    assert site.called_off == ["b"]
    assert site.models["a"].n_closed == 1
    for task in waiting:
        error = await failure(task)
        assert type(error) is Unavailable
        assert error.code == "shutting_down"
    assert isinstance(await failure(site.ask("a")), Unavailable)
    await site.roster.close()


async def test_the_end_comes_though_a_load_was_asked_for_in_the_same_moment() -> None:
    site = Site(a=1)
    task, closing = site.ask("a"), asyncio.ensure_future(site.roster.close())
    async with soon():
        error = await failure(task)
        await closing
    assert error.code == "shutting_down"
    assert site.loads == []


async def test_the_end_while_one_is_being_closed_closes_it_to_its_end() -> None:
    site = Site(budget=1, a=1, b=1)
    await site.visit("a")
    site.models["a"].gate.clear()
    task = site.ask("b")
    await settle()
    closing = asyncio.ensure_future(site.roster.close())
    await settle()
    assert not closing.done()
    site.models["a"].gate.set()
    async with soon():
        await closing
    assert site.models["a"].n_closed == 1
    assert isinstance(await failure(task), Unavailable)
