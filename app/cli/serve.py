"""`segue serve`."""

import logging
import socket
from typing import Any

import click

from app import log
from app.api import server
from app.api.drain import Drain
from app.asgi import Loaded, create_app, create_engine, load
from app.cli import banner, flags
from app.cli.console import loading, one_line_errors
from app.settings import Settings


@click.command()
@flags.settings
def serve(**given: Any) -> None:
    """Serve a model. Every option can also be set as SEGUE_NAME in the environment, or in a --config file."""
    logging.getLogger("segue.llama").setLevel(logging.WARNING)
    with one_line_errors():
        settings = flags.read(given)
        log.set_up(as_json=settings.log_json)
        with server.bind(settings.host, settings.port) as listener:
            with loading(shown=not settings.log_json) as report:
                loaded = load(settings, report)
            _run(settings, loaded, listener)


def _run(settings: Settings, loaded: Loaded, listener: socket.socket) -> None:
    (banner.log_start if settings.log_json else banner.show)(settings, loaded, listener)
    engine, drain = create_engine(settings, loaded), Drain()
    end = server.End(drain.begin, engine.close, settings.drain_seconds)
    server.run(create_app(settings, loaded, engine, drain), listener, end)
