"""`segue ray`."""

import os
import signal
import threading
from typing import Any

import click
import msgspec

from app import __version__, muster
from app.api import server
from app.asgi import n_processors
from app.cli import flags
from app.cli.console import console
from app.cli.ends import one_line_errors
from app.errors import SettingsError, StartError
from app.settings import Settings

NO_RAY = "Ray is not installed: pip install 'segue[ray]', on each machine of the cluster."
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",  # each request has its line
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "app.api.front.before_replicas",
}
"""What Ray reads when it is imported and when a cluster starts; one that runs already may lack it."""


@click.command()
@click.option("--replicas", metavar="N", type=click.IntRange(1), help="Replicas, each a copy of the model [1].")
@click.option("--min-replicas", metavar="N", type=click.IntRange(1), help="At least so many, by the load [1].")
@click.option("--max-replicas", metavar="N", type=click.IntRange(1), help="At most so many, by the load.")
@click.option("--cpus", metavar="N", type=click.FloatRange(0), help="Processors of a replica [--threads, else all].")
@click.option("--gpus", metavar="N", type=click.FloatRange(0), default=0.0, help="GPUs of a replica [0].")
@click.option(
    "--upscale-delay",
    metavar="SECONDS",
    type=click.FloatRange(0),
    default=30.0,
    help="How long more load must last before a replica is added [30].",
)
@click.option(
    "--downscale-delay",
    metavar="SECONDS",
    type=click.FloatRange(0),
    default=600.0,
    help="How long less load must last before one is removed [600].",
)
@click.option(
    "--address",
    metavar="ADDRESS",
    envvar="RAY_ADDRESS",
    help="Cluster to serve on, auto or HOST:PORT [one of this machine alone].",
)
@flags.settings
def ray(
    replicas: int | None,
    min_replicas: int | None,
    max_replicas: int | None,
    cpus: float | None,
    gpus: float,
    upscale_delay: float,
    downscale_delay: float,
    address: str | None,
    **given: Any,
) -> None:
    """Serve a model by replicas on a Ray cluster: the options of serve, for each of them, and those of the cluster."""
    with one_line_errors():
        least, most = _bounds(replicas, min_replicas, max_replicas)
        settings = _settled(flags.read(given))
        cluster = _cluster()
        scale = cluster.Scale(
            least,
            most,
            n_cpus=max(each.threads or n_processors() for each in settings.each()) if cpus is None else cpus,
            n_gpus=gpus,
            upscale_delay=upscale_delay,
            downscale_delay=downscale_delay,
        )
        _serve(cluster, settings, scale, address)


def _cluster() -> Any:
    """The module that knows Ray. Raises StartError where that is not installed."""
    os.environ.update(ENVIRONMENT)
    try:
        from app import ray
    except ImportError as error:
        raise StartError(NO_RAY) from error
    return ray


def _settled(settings: Settings) -> Settings:
    """The settings with the models' whole paths, which all machines must have, and a port that is free here."""
    paths = [place.path.absolute() for place in muster.places(settings)]
    with server.bind(settings.host, settings.port) as listener:
        port = listener.getsockname()[1]
    if not settings.models:
        return msgspec.structs.replace(settings, model=str(paths[0]), port=port)
    models = (msgspec.structs.replace(m, model=str(path)) for m, path in zip(settings.models, paths, strict=True))
    return msgspec.structs.replace(settings, models=tuple(models), port=port)


def _bounds(replicas: int | None, least: int | None, most: int | None) -> tuple[int, int]:
    """The fewest and the most replicas. Raises SettingsError."""
    if replicas is not None and (least or most):
        raise SettingsError("--replicas is a fixed number; --min-replicas and --max-replicas let it follow the load.")
    if replicas is not None:
        return replicas, replicas
    least = least or 1
    if (most or least) < least:
        raise SettingsError(f"--max-replicas is {most}, below --min-replicas, which is {least}.")
    return least, most or least


def _serve(cluster: Any, settings: Settings, scale: Any, address: str | None) -> None:
    """Serve until a signal comes."""
    over = threading.Event()
    try:
        cluster.start(settings, scale, address)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: over.set())
        _say(settings, scale)
        over.wait()
    except (RuntimeError, ConnectionError) as error:
        raise StartError(f"Ray cannot serve it: {' '.join(str(error).split())}") from error
    finally:
        cluster.stop()


def _say(settings: Settings, scale: Any) -> None:
    shown = f"{scale.least}" if scale.least == scale.most else f"{scale.least} to {scale.most}"
    console.print(f"[bold]segue {__version__} on Ray[/bold], replicas: {shown}", highlight=False)
    body = '{"prompt": "The capital of France is", "max_tokens": 5}'
    console.print(
        f"curl http://{settings.host}:{settings.port}/v1/completions -H 'content-type: application/json' -d '{body}'",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
