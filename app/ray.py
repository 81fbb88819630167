"""segue on a Ray cluster: replicas of the one application, each with a copy of the model in a process of its own.

Owns what a replica is, how many there are and how requests come to them; refuses to know what they answer. All of
it is Ray Serve's doing, as it is set up here. Ray is an extra, so nothing but its command imports this module.
"""

import logging
from dataclasses import dataclass
from typing import Any

import msgspec
import ray
from ray import serve

from app import log, muster
from app.api.drain import Drain
from app.api.server import KEEP_ALIVE_SECONDS
from app.api.signed import Signed
from app.asgi import create_app
from app.settings import Settings

NAME = "segue"
OBJECT_STORE_BYTES = 100 << 20
"""For what is passed between processes, which are a few kilobytes: Ray would take a third of the memory."""
BY_NAME = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
QUIET = {"log_level": "WARNING", "enable_access_log": False}
"""Of Ray's own lines; segue's have each request."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How many replicas, and what each has. Between `least` and `most`, Ray adds and removes them; times are in
    seconds of a load that lasts. n_cpus are threads too, unless the settings say otherwise."""

    least: int = 1
    most: int = 1
    n_cpus: float = 1
    n_gpus: float = 0
    upscale_delay: float = 30
    downscale_delay: float = 600


class Replica:
    """A copy of the model, or of the models. Ray runs the application's lifespan, and with it the engines'."""

    def __init__(self, settings: Settings) -> None:
        log.set_up(as_json=settings.log_json)
        logging.getLogger("segue.llama").setLevel(logging.WARNING)
        wanted = muster.places(settings)
        budget = muster.check_budget(settings, wanted)
        loaded = {place.id: place.load() for place in wanted if place.is_first_loaded}
        self._house = muster.create_house(settings, wanted, loaded, budget)
        self._served = Signed(create_app(settings, self._house, Drain()))

    def __serve_build_asgi_app__(self) -> Any:
        return self._served

    def check_health(self) -> None:
        """Called by Ray, which replaces a replica where this raises."""
        if seat := self._house.unsound:
            raise RuntimeError(f"the engine of {seat.id} is not running, or hangs in a step")


def application(settings: Settings, scale: Scale) -> serve.Application:
    """The application. A replica holds as many requests as it runs, and as many again, so that none of its places
    stays empty; the others wait in Ray's line, for whichever replica is next, a new one among them."""
    held = 2 * _n_parallel(settings)
    # Its own line has to take what Ray hands it.
    own = msgspec.structs.replace(_threaded(settings, scale), max_waiting=max(settings.max_waiting, held))
    deployment = serve.deployment(
        serve.ingress()(Replica),
        name=NAME,
        ray_actor_options={"num_cpus": scale.n_cpus, "num_gpus": scale.n_gpus},
        max_ongoing_requests=held,
        max_queued_requests=max(1, settings.max_waiting),
        backpressure_config={"status_code": 429, "retry_after_s": 1},
        graceful_shutdown_timeout_s=settings.drain_seconds,
        graceful_shutdown_wait_loop_s=0.5,
        logging_config=QUIET,
        **_replicas(settings, scale),
        **_routing(settings, scale),
    )
    return deployment.bind(own)


def _n_parallel(settings: Settings) -> int:
    """The sequences that a replica runs at once, of all its models."""
    return sum(each.parallel for each in settings.each())


def _threaded(settings: Settings, scale: Scale) -> Settings:
    """Threads as a replica has processors, where nothing else is said."""
    n_threads = max(1, int(scale.n_cpus))
    models = (msgspec.structs.replace(model, threads=model.threads or n_threads) for model in settings.models)
    return msgspec.structs.replace(settings, threads=settings.threads or n_threads, models=tuple(models))


def _replicas(settings: Settings, scale: Scale) -> dict[str, Any]:
    """How many. Ray counts the requests that run and those that wait: one replica for as many as it runs at once."""
    if scale.least == scale.most:
        return {"num_replicas": scale.least}
    return {
        "autoscaling_config": {
            "min_replicas": scale.least,
            "max_replicas": scale.most,
            "target_ongoing_requests": _n_parallel(settings),
            "upscale_delay_s": scale.upscale_delay,
            "downscale_delay_s": scale.downscale_delay,
        }
    }


def _routing(settings: Settings, scale: Scale) -> dict[str, Any]:
    """Where replicas keep what they have read, requests that begin alike go to one; where it is full, to its
    neighbour. Else the less busy of two has it, as is Ray's way."""
    if not any(each.prefix_cache for each in settings.each()):
        return {}
    fallbacks = {"num_fallback_replicas": scale.most - 1}
    return {"request_router_config": {"request_router_class": BY_NAME, "request_router_kwargs": fallbacks}}


def start(settings: Settings, scale: Scale, address: str | None) -> None:
    """Serve on the cluster at `address`, or on one of this machine alone; returns when all replicas are ready.

    Raises RuntimeError where Ray, or a replica, cannot start.
    """
    http = {"host": settings.host or "0.0.0.0", "port": settings.port, "keep_alive_timeout_s": KEEP_ALIVE_SECONDS}
    own = {"address": "local", "include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    ray.init(**({"address": address} if address else own), namespace=NAME, logging_level=logging.WARNING)
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(proxy_location="EveryNode", http_options=http, logging_config=QUIET)
    serve.run(application(settings, scale), name=NAME, logging_config=QUIET)


def stop() -> None:
    """Let running requests finish, in their time. A cluster that was there before stays, and what else it serves."""
    if ray.is_initialized():  # or Ray would start one, to stop what runs on it
        serve.delete(NAME)
        ray.shutdown()
