"""Settings make a house: the models that are named, those of them that are loaded at the start, and how others come.

Owns what is decided before any model is there: names, estimates, the budget. How one is loaded is `app.asgi`'s, who
comes and goes the roster's.
"""

import asyncio
import threading
from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from app.asgi import Loaded, create_serving, load, sizes_of, with_defaults
from app.completion.infill import check_template
from app.completion.serving import House, Seat, Serving
from app.engine import header, memory
from app.engine.llama import Progress, ggml
from app.engine.sizes import DEFAULT_CONTEXT
from app.engine.turns import Turns
from app.errors import ModelError, SegueError, SettingsError, StartError
from app.member import Member
from app.names import catalogue_entry, file_of, names_of, told_apart
from app.settings import Settings

COMPUTE = 256 << 20
"""Bytes that a model computes in, about: rows of logits, and the widest layer of a batch."""
N_SWEEPS = 3
"""How often what a model has left is looked for: what was found is closed, and sets more free."""


@dataclass(frozen=True, slots=True)
class Place:
    """A model that is to be served. settings: as if it were the only one.

    n_bytes: what it will take, about; n_context: tokens of one request. Of one that is alone and loaded at once they
    are left open: it tells itself.
    """

    settings: Settings
    path: Path
    names: tuple[str, ...]
    n_bytes: int = 0
    n_context: int = 0

    @property
    def id(self) -> str:
        return self.names[0]

    @property
    def is_first_loaded(self) -> bool:
        """Whether it is loaded before the server says that it is ready."""
        return self.settings.load == "start"

    def load(self, progress: Progress | None = None) -> Loaded:
        """The model, under its names. Raises StartError."""
        return replace(load(self.settings, progress), names=self.names)


def places(settings: Settings) -> list[Place]:
    """The models that the settings name; a file that is none is told at once. Raises StartError."""
    every = settings.each()
    paths = [file_of(each.model) for each in every]
    if settings.models:
        names = told_apart((path, each.alias) for path, each in zip(paths, every, strict=True))
    else:
        names = [names_of(paths[0], settings.alias)]
    is_alone = len(every) == 1
    return [_place(*of, is_alone) for of in zip(every, paths, names, strict=True)]


def _place(settings: Settings, path: Path, names: tuple[str, ...], is_alone: bool) -> Place:
    place = Place(with_defaults(settings, catalogue_entry(path)), path, names)
    header.check(path)
    try:
        check_template(place.settings.fim_template)
        return place if is_alone and place.is_first_loaded else _reckoned(place)
    except SettingsError as error:
        raise error if is_alone else SettingsError(f"{place.id}: {error.message}") from None


def _reckoned(place: Place) -> Place:
    """With what its file tells of sizes. One that cannot be read here is for llama.cpp to judge, and counts whole."""
    from app.catalogue.memory import memory as reckon  # gguf takes a quarter of a second
    from app.catalogue.reader import Gguf

    settings, path, sizes = place.settings, place.path, sizes_of(place.settings)
    try:
        found = reckon(Gguf(path), sizes, settings.cache_type_k, settings.cache_type_v)
    except ModelError:
        n_context = sizes.settled(DEFAULT_CONTEXT).n_context
        return replace(place, n_bytes=path.stat().st_size + COMPUTE, n_context=n_context)
    return replace(place, n_bytes=found.weights + (found.cache or 0) + COMPUTE, n_context=found.context)


def check_budget(settings: Settings, wanted: Ordered[Place]) -> int:
    """Bytes that all models may take. Raises SettingsError where those that are to be there at the start do not fit.

    One model alone may take what it takes, and devices are not asked for it.
    """
    budget = settings.memory_budget or (memory.budget(ggml) if len(wanted) > 1 else 0)
    first = [place for place in wanted if place.is_first_loaded]
    needed = sum(place.n_bytes for place in first)
    if len(first) > 1 and needed > budget:
        each = ", ".join(f"{place.id} {_mib(place.n_bytes)}" for place in first)
        raise SettingsError(
            f"memory_budget is {_mib(budget)}, and the models to be loaded at the start take about {_mib(needed)} "
            f'({each}); give some of them load = "first-use", or fewer cells (cache_size).'
        )
    return budget


def _mib(n_bytes: int) -> str:
    return f"{n_bytes >> 20:,} MiB"


def create_house(settings: Settings, wanted: Ordered[Place], loaded: Mapping[str, Loaded], budget: int) -> House:
    """The house of these models; `loaded`: those that are there already, by their id."""
    turns = Turns() if len(wanted) > 1 else None
    by_id = {place.id: place for place in wanted}

    def seat(place: Place) -> Seat:
        there = loaded.get(place.id)
        serving = create_serving(place.settings, there, turns) if there else None
        minutes = place.settings.idle_unload_minutes
        return Seat(place.names, place.n_bytes, place.n_context, minutes and 60 * minutes, serving)

    async def bring(member: Member[Serving]) -> Serving:
        place = by_id[member.id]
        try:
            return create_serving(place.settings, await _loaded(place), turns)
        except StartError as error:  # clients are told of it, and need not know where the file lies
            raise StartError(error.message.replace(str(place.path), place.path.name)) from error

    async def sweep() -> None:
        # The first finds streams that were left; the loop closes them, and the next finds what they held.
        for _ in range(N_SWEEPS):
            await asyncio.to_thread(memory.give_back)

    # Those who wait for a model are no more than its engine would take at once, running or in its line.
    n_waiting = settings.max_waiting + settings.parallel
    return House(map(seat, wanted), bring, budget, n_waiting, sweep)


async def _loaded(place: Place) -> Loaded:
    """Load a model in a thread. Cancelled, it ends that as soon as llama.cpp asks, and waits until nothing is left."""
    is_over = threading.Event()
    loading = asyncio.ensure_future(asyncio.to_thread(place.load, lambda _: not is_over.is_set()))
    try:
        return await asyncio.shield(loading)
    except asyncio.CancelledError:
        is_over.set()
        with suppress(SegueError):
            (await loading).backend.close()
        raise
