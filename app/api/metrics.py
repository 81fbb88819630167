"""GET /metrics, and what it counts: the only module that knows Prometheus.

Requests are counted when they end, from their records; the engines are looked at when somebody asks.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Ordered
from itertools import accumulate
from typing import Any

import msgspec
from litestar import Request, Response, get
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from app.completion.record import Outcome, Record
from app.completion.serving import Seat
from app.engine.stats import BOUNDS, Times

disable_created_metrics()  # a series more for each, which nobody reads

_FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


class Metrics(Collector):
    """The counts of one application. They start at 0, so that the first of anything shows as a rise."""

    def __init__(self, seats: Ordered[Seat], *, labelled: bool) -> None:
        """labelled: whether the engines' series say whose they are."""
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
        self._seats = seats
        self._labelled = labelled
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
        """What is not counted here, but looked up: how the engines stand now."""
        if self._labelled:
            loaded = GaugeMetricFamily("segue_model_loaded", "Whether a model is loaded.", labels=["model"])
            for seat in self._seats:
                loaded.add_metric([seat.id], seat.tenant is not None)
            yield loaded
        yield from self._standing()
        yield from self._placed()

    def _standing(self) -> Iterator[Metric]:
        """What the engines do, and have done; those that are gone are counted on."""
        running = GaugeMetricFamily("segue_sequences_running", "Sequences that run.", labels=self._labels())
        waiting = GaugeMetricFamily(
            "segue_requests_waiting", "Requests of which nothing has run yet.", labels=self._labels()
        )
        cells = GaugeMetricFamily(
            "segue_cache_cells",
            "Cells, of a token each: held by running sequences, kept for those to come, free.",
            labels=self._labels("state"),
        )
        preempted = CounterMetricFamily(
            "segue_preemptions", "Sequences that lost their cells to others.", labels=self._labels()
        )
        faults = CounterMetricFamily(
            "segue_faults", "Requests that a fault of the server has cost.", labels=self._labels()
        )
        steps = HistogramMetricFamily(
            "segue_step_seconds", "The parts of the engine's steps.", labels=self._labels("part")
        )
        for seat in self._seats:
            now, of = seat.snapshot(), self._values
            running.add_metric(of(seat), now.n_running)
            waiting.add_metric(of(seat), now.n_waiting)
            for state in ("running", "cached", "free"):
                cells.add_metric(of(seat, state), getattr(now, f"n_cells_{state}"))
            preempted.add_metric(of(seat), now.n_preempted)
            faults.add_metric(of(seat), now.n_faults + (0 if self._labelled else self._broken))
            for part, times in now.steps.items():
                steps.add_metric(of(seat, part), _buckets(times), times.seconds)
        if self._labelled:  # faults outside of the engines
            faults.add_metric([""], self._broken)
        yield from (running, waiting, cells, preempted, faults, steps)

    def _placed(self) -> Iterator[Metric]:
        """Where the models are that are loaded."""
        info = InfoMetricFamily(
            "segue_offload", "Layers asked onto GPUs, and those that are there.", labels=self._labels()
        )
        layers = GaugeMetricFamily(
            "segue_device_layers", "Layers on each device.", labels=self._labels("device", "description")
        )
        n_bytes = GaugeMetricFamily(
            "segue_device_bytes", "Memory of each device for weights, for the KV cache, and to compute in.",
            labels=self._labels("device", "kind"),
        )  # fmt: skip
        for seat in self._seats:
            if seat.tenant is None:
                continue
            offload = seat.tenant.meta.offload
            told = msgspec.structs.asdict(offload)
            del told["devices"]
            info.add_metric(self._values(seat), {key: str(value).lower() for key, value in told.items()})
            for share in offload.devices:
                layers.add_metric(self._values(seat, share.name, share.description), share.layers)
                for kind in ("weights", "cache", "compute"):
                    n_bytes.add_metric(self._values(seat, share.name, kind), getattr(share, f"{kind}_bytes"))
        yield from (info, layers, n_bytes)

    def _labels(self, *labels: str) -> list[str]:
        return ["model", *labels] if self._labelled else list(labels)

    def _values(self, seat: Seat, *values: str) -> list[str]:
        return [seat.id, *values] if self._labelled else list(values)


def _buckets(times: Times) -> list[tuple[str, float]]:
    """(upper end, times up to it), as Prometheus counts."""
    ends = [*map(str, BOUNDS), "+Inf"]
    return list(zip(ends, accumulate(times.n_within), strict=True))


@get("/metrics")
async def get_metrics(request: Request[Any, Any, Any], metrics: Metrics) -> Response[bytes]:
    """Counts and times for Prometheus, as its text or, where it asks for that, as OpenMetrics."""
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(metrics.registry), headers={"content-type": media_type})
