"""What serves one model, made when it is loaded and gone when it is unloaded; its seat, which stays; all seats.

Owns what there is to tell of a model that is not loaded; refuses to know how one is loaded, and who asks.
"""

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

from app.completion.service import CompletionService
from app.completion.tokenizer import TokenizerService
from app.engine.engine import Engine
from app.engine.stats import Snapshot
from app.member import Member, State
from app.roster import Roster
from app.schemas import Model, ModelMeta, ModelStatus, Props


@dataclass(frozen=True, slots=True)
class Serving:
    """A loaded model, by its engine. n_bytes: the memory that it takes, on all devices."""

    engine: Engine
    service: CompletionService
    tokenizer: TokenizerService
    props: Props
    meta: ModelMeta
    n_bytes: int

    def start(self) -> None:
        self.engine.start()

    async def close(self) -> None:
        await self.engine.close()


_TOLD = {
    State.UNLOADED: ModelStatus("unloaded"),
    State.LOADING: ModelStatus("loading"),
    State.LOADED: ModelStatus("loaded"),
    State.FAILED: ModelStatus("unloaded", failed=True),
}


class Seat(Member[Serving]):
    """A model's place. n_context: tokens of one request. meta: as of the last time that it was loaded."""

    def __init__(
        self,
        names: tuple[str, ...],
        n_bytes: int,
        n_context: int,
        idle_seconds: float | None = None,
        tenant: Serving | None = None,
    ) -> None:
        super().__init__(names, n_bytes, idle_seconds, tenant)
        self._n_context = n_context
        self._meta: ModelMeta | None = None
        self._created = int(time.time())
        self._before = Snapshot()

    def leave(self) -> None:
        """Forget the tenant, but for what it has counted and was."""
        if self.tenant is not None:
            self._before = self.tenant.engine.snapshot().after(self._before)
            self._meta, self._n_context = self.tenant.meta, self.tenant.service.served.n_context
        super().leave()

    @property
    def meta(self) -> ModelMeta | None:
        return self.tenant.meta if self.tenant else self._meta

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong with it: not being loaded is not, and being closed is not."""
        is_closing = self.is_leaving and self.is_free.is_set()
        return self.tenant is None or is_closing or self.tenant.engine.is_healthy

    def snapshot(self) -> Snapshot:
        """How it stands, with what earlier engines of it have counted."""
        now = self.tenant.engine.snapshot() if self.tenant else Snapshot()
        return replace(now.after(self._before), n_waiting=now.n_waiting + self.n_waiting)

    def listed(self) -> list[Model]:
        """An object for each of its names."""
        told = _TOLD[self.state]
        n_context = self.tenant.service.served.n_context if self.tenant else self._n_context
        return [
            Model(
                name,
                "model",
                self._created,
                owned_by="segue",
                root=self.id,
                max_model_len=n_context,
                state=self.state.value,
                status=told,
                meta=self.meta,
            )
            for name in self.names
        ]


class House(Roster[Serving]):
    """The roster of the models of a process. The parameters are a Roster's."""

    def __init__(
        self,
        seats: Iterable[Seat],
        load: Callable[[Member[Serving]], Awaitable[Serving]],
        budget: int,
        max_waiting: int,
        sweep: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.seats = tuple(seats)
        super().__init__(self.seats, load, budget, max_waiting, sweep)

    @property
    def unsound(self) -> Seat | None:
        """A model with which something is wrong, if there is one."""
        return next((seat for seat in self.seats if not seat.is_sound), None)
