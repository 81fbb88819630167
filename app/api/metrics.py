"""GET /metrics, and what it counts: the only module that knows Prometheus.

Requests are counted when they end, from their records; the engine is looked at when somebody asks.
"""

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import msgspec
from litestar import Request, Response, get
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from app.completion.record import Outcome, Record
from app.engine.stats import BOUNDS, Snapshot, Times
from app.schemas import OffloadMeta

disable_created_metrics()  # a series more for each, which nobody reads

_FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Metrics(Collector):
    """The counts of one application. They start at 0, so that the first of anything shows as a rise."""

    def __init__(self, look: Callable[[], Snapshot], offload: OffloadMeta) -> None:
        """look: how the engine stands, at once."""
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "segue_requests", "Requests, by their route and the status of the answer.", ["route", "status"],
            registry=registry,
        )  # fmt: skip
        tokens = Counter(
            "segue_tokens", "Tokens: of prompts that were read, those of them that were cached, and sampled ones.",
            ["kind"], registry=registry,
        )  # fmt: skip
        self._prompt, self._cached, self._completion = map(tokens.labels, ("prompt", "cached", "completion"))
        self._prompts = Counter("segue_prompts", "Prompts that were read.", registry=registry)
        self._hits = Counter("segue_cache_hits", "Prompts of which a part was in the cache.", registry=registry)
        self._first = Histogram(
            "segue_time_to_first_token_seconds", "From the line to the first text of the answer.",
            buckets=_FIRST, registry=registry,
        )  # fmt: skip
        self._per_token = Histogram(
            "segue_time_per_token_seconds", "From one token of a choice to its next, the average of each request.",
            buckets=_PER_TOKEN, registry=registry,
        )  # fmt: skip
        self._disconnects = Counter(
            "segue_disconnects", "Requests whose client left before the answer's end.", registry=registry
        )
        self._timeouts = Counter("segue_timeouts", "Requests that took too long.", registry=registry)
        self._broken = 0
        self._look = look
        _tell_offload(offload, registry)
        registry.register(self)
        ProcessCollector(registry=registry)

    def count(self, record: Record, route: str, status: int) -> None:
        """Take a request into account that has ended."""
        self._requests.labels(route, str(status)).inc()
        self._disconnects.inc(record.outcome is Outcome.LEFT)
        self._timeouts.inc(record.outcome is Outcome.EXPIRED)
        self._broken += record.outcome is Outcome.BROKEN
        if not record.was_queued:
            return
        self._prompts.inc(record.n_prompts)
        self._hits.inc(record.n_hits)
        self._prompt.inc(record.n_read)
        self._cached.inc(record.n_cached)
        self._completion.inc(record.n_sampled)
        if record.first is not None:
            self._first.observe(record.first)
        if record.per_token is not None:
            self._per_token.observe(record.per_token)

    def collect(self) -> Iterator[Metric]:
        """What is not counted here, but looked up: how the engine stands now."""
        now = self._look()
        yield GaugeMetricFamily("segue_sequences_running", "Sequences that run.", now.n_running)
        yield GaugeMetricFamily("segue_requests_waiting", "Requests of which nothing has run yet.", now.n_waiting)
        cells = GaugeMetricFamily(
            "segue_cache_cells",
            "Cells, of a token each: held by running sequences, kept for those to come, free.",
            labels=["state"],
        )
        cells.add_metric(["running"], now.n_cells_running)
        cells.add_metric(["cached"], now.n_cells_cached)
        cells.add_metric(["free"], now.n_cells_free)
        yield cells
        yield CounterMetricFamily("segue_preemptions", "Sequences that lost their cells to others.", now.n_preempted)
        yield CounterMetricFamily(
            "segue_faults", "Requests that a fault of the server has cost.", now.n_faults + self._broken
        )
        steps = HistogramMetricFamily("segue_step_seconds", "The parts of the engine's steps.", labels=["part"])
        for part, times in now.steps.items():
            steps.add_metric([part], _buckets(times), times.seconds)
        yield steps


def _tell_offload(offload: OffloadMeta, registry: CollectorRegistry) -> None:
    """Where the model is: it stays there, and is told once."""
    info = Info("segue_offload", "Layers asked onto GPUs, and those that are there.", registry=registry)
    told = msgspec.structs.asdict(offload)
    del told["devices"]
    info.info({key: str(value).lower() for key, value in told.items()})
    layers = Gauge("segue_device_layers", "Layers on each device.", ["device", "description"], registry=registry)
    n_bytes = Gauge(
        "segue_device_bytes", "Memory of each device for weights, for the KV cache, and to compute in.",
        ["device", "kind"], registry=registry,
    )  # fmt: skip
    for share in offload.devices:
        layers.labels(share.name, share.description).set(share.layers)
        n_bytes.labels(share.name, "weights").set(share.weights_bytes)
        n_bytes.labels(share.name, "cache").set(share.cache_bytes)
        n_bytes.labels(share.name, "compute").set(share.compute_bytes)


def _buckets(times: Times) -> list[tuple[str, float]]:
    """(upper end, times up to it), as Prometheus counts."""
    ends = [*map(str, BOUNDS), "+Inf"]
    return list(zip(ends, accumulate(times.n_within), strict=True))


@get("/metrics")
async def get_metrics(request: Request[Any, Any, Any], metrics: Metrics) -> Response[bytes]:
    """Counts and times for Prometheus, as its text or, where it asks for that, as OpenMetrics."""
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(metrics.registry), headers={"content-type": media_type})
