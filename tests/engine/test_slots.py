"""Slots against a model: a dictionary from slots to the sets of cells that they hold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.slots import Slots
from tests.engine.fakes import PROPERTY


class Recorder:
    """A memory that keeps the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str | int, ...]] = []

    def fork(self, source: int, target: int, n_tokens: int) -> None:
        self.calls.append(("fork", source, target, n_tokens))

    def cut(self, slot: int, n_tokens: int) -> None:
        self.calls.append(("cut", slot, n_tokens))

    def drop(self, slot: int) -> None:
        self.calls.append(("drop", slot))


N_SLOTS, N_CELLS = 6, 1000
AMOUNTS = st.sampled_from([0, 1, 3, 4, 4, 4, 8, 99])
"""Few, so that forks often end where others do."""
STEP = st.tuples(
    st.sampled_from(["take", "grow", "grow", "fork", "fork", "drop"]), st.integers(0, N_SLOTS - 1), AMOUNTS
)


@settings(PROPERTY, max_examples=150)
@given(st.lists(STEP, max_size=40))
def test_the_cells_used_are_those_that_some_slot_holds(steps: list[tuple[str, int, int]]) -> None:
    memory = Recorder()
    slots = Slots(memory, N_SLOTS, N_CELLS)
    held: dict[int, list[int]] = {}
    calls: list[tuple[str | int, ...]] = []
    n_made = 0
    for action, which, amount in steps:
        taken = sorted(held)
        if action == "take" and len(taken) < N_SLOTS:
            slot = slots.take()
            assert slot not in held
            held[slot] = []
        if not taken:
            continue
        slot = taken[which % len(taken)]
        if action == "grow":
            slots.grow(slot, amount % 8)
            held[slot] += range(n_made, n_made + amount % 8)
            n_made += amount % 8
        elif action == "fork" and len(taken) < N_SLOTS:
            n_shared = min(amount, len(held[slot]))
            target = slots.fork(slot, n_shared)
            assert target not in held
            held[target] = held[slot][:n_shared]
            calls.append(("fork", slot, target, n_shared))
        elif action == "drop":
            slots.drop(slot)
            del held[slot]
            calls.append(("drop", slot))
        n_distinct = len(set().union(*held.values()))
        assert (slots.n_used, slots.n_free) == (n_distinct, N_CELLS - n_distinct)
        assert slots.n_idle == N_SLOTS - len(held)
        assert {slot: slots.length(slot) for slot in held} == {slot: len(cells) for slot, cells in held.items()}
        assert memory.calls == calls
    for slot in sorted(held, key=lambda slot: slot * 5 % N_SLOTS):
        slots.drop(slot)
    assert (slots.n_used, slots.n_idle) == (0, N_SLOTS)


def test_a_fork_of_a_fork_in_its_middle_outlives_both() -> None:
    slots = Slots(Recorder(), 4, 100)
    first = slots.take()
    slots.grow(first, 10)
    second = slots.fork(first, 8)
    slots.grow(second, 5)
    third = slots.fork(second, 6)
    assert (slots.n_used, slots.length(third)) == (15, 6)
    slots.drop(first)
    assert slots.n_used == 13
    slots.drop(second)
    assert slots.n_used == 6
    slots.grow(third, 1)
    slots.drop(third)
    assert slots.n_used == 0


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 3, 2), (2, 3, 0, 1)])
def test_forks_that_end_at_one_place_free_their_cells_with_the_last_of_them(order: tuple[int, ...]) -> None:
    slots = Slots(Recorder(), 4, 100)
    first = slots.take()
    slots.grow(first, 10)
    taken = [first, slots.fork(first, 8), slots.fork(first, 8), slots.fork(first, 10)]
    n_used = []
    for i in order:
        slots.drop(taken[i])
        n_used.append(slots.n_used)
    holders = [{0, 3}, {0, 1, 2, 3}]
    left = [set(order[n:]) for n in range(1, 5)]
    assert n_used == [2 * bool(holders[0] & rest) + 8 * bool(holders[1] & rest) for rest in left]


def test_a_slot_that_was_given_back_is_empty_when_it_is_taken_again() -> None:
    slots = Slots(Recorder(), 1, 100)
    slot = slots.take()
    slots.grow(slot, 7)
    slots.drop(slot)
    assert slots.take() == slot
    assert (slots.length(slot), slots.n_used) == (0, 0)


def test_a_slot_is_cut_at_its_end_and_never_into_what_others_hold() -> None:
    memory = Recorder()
    slots = Slots(memory, 2, 100)
    first = slots.take()
    slots.grow(first, 10)
    second = slots.fork(first, 8)
    slots.grow(second, 5)
    slots.cut(second, 2)
    assert (slots.length(second), slots.n_used) == (11, 13)
    assert memory.calls[-1] == ("cut", second, 11)
    slots.cut(first, 2)
    assert (slots.length(first), slots.n_used) == (8, 11)
    with pytest.raises(AssertionError):
        slots.cut(first, 1)


def test_a_slot_that_is_not_taken_holds_nothing() -> None:
    """Another thread may ask for one that has just been dropped."""
    slots = Slots(Recorder(), N_SLOTS, N_CELLS)
    slot = slots.take()
    slots.grow(slot, 3)
    assert slots.n_held([slot, 3, 99]) == 3
