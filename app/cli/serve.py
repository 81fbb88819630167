"""`segue serve`."""

import logging
import socket
from collections.abc import Sequence as Ordered
from typing import Any

import click

from app import log, muster
from app.api import server
from app.api.drain import Drain
from app.asgi import Loaded, create_app
from app.cli import banner, flags
from app.cli.console import loading
from app.cli.ends import one_line_errors
from app.muster import Place
from app.settings import Settings


@click.command()
@flags.settings
def serve(**given: Any) -> None:
    """Serve a model, or several. Every option can also be set as SEGUE_NAME in the environment, or in a --config file.

    Several models stand in that file, as tables [[models]].
    """
    logging.getLogger("segue.llama").setLevel(logging.WARNING)
    with one_line_errors():
        settings = flags.read(given)
        log.set_up(as_json=settings.log_json)
        with server.bind(settings.host, settings.port) as listener:
            wanted = muster.places(settings)
            budget = muster.check_budget(settings, wanted)
            loaded = {place.id: _loaded(settings, place) for place in wanted if place.is_first_loaded}
            _run(settings, wanted, loaded, budget, listener)


def _loaded(settings: Settings, place: Place) -> Loaded:
    with loading(place.id if settings.models else "the model", shown=not settings.log_json) as report:
        return place.load(report)


def _run(
    settings: Settings, wanted: Ordered[Place], loaded: dict[str, Loaded], budget: int, listener: socket.socket
) -> None:
    (banner.log_start if settings.log_json else banner.show)(settings, wanted, loaded, listener)
    house, drain = muster.create_house(settings, wanted, loaded, budget), Drain()
    loaded.clear()  # or a model could never leave
    end = server.End(drain.begin, house.close, settings.drain_seconds)
    server.run(create_app(settings, house, drain), listener, end)
