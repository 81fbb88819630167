"""Connections that do not wait for ever: uvicorn's, with a limit on how long a client may stall.

Owns the two clocks: one for a request to arrive whole, one for written bytes to be taken. Refuses to know requests.
"""

import asyncio
from collections.abc import Callable

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

ARRIVAL_SECONDS = 120
"""From a connection's start, or a request's first byte, to its last."""
STALLED_SECONDS = 60
"""How long a client may take nothing of what was written, when the buffers are full."""


class Connection(HttpToolsProtocol):
    """A client that stalls is cut off: what runs for it is cancelled as if it had left."""

    _arrival: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._arrival = self._clock(ARRIVAL_SECONDS)

    def on_message_begin(self) -> None:
        _stop(self._arrival)
        self._arrival = self._clock(ARRIVAL_SECONDS)
        super().on_message_begin()

    def on_message_complete(self) -> None:
        _stop(self._arrival)
        super().on_message_complete()

    def pause_writing(self) -> None:
        self._taking = self._clock(STALLED_SECONDS)
        super().pause_writing()

    def resume_writing(self) -> None:
        _stop(self._taking)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        _stop(self._arrival)
        _stop(self._taking)
        super().connection_lost(exc)

    def _clock(self, seconds: float) -> asyncio.TimerHandle:
        abort: Callable[[], None] = self.transport.abort
        return self.loop.call_later(seconds, abort)


def _stop(clock: asyncio.TimerHandle | None) -> None:
    if clock:
        clock.cancel()
