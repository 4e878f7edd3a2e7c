"""What the gateway tells Prometheus. Labels are bounded: slugs of the snapshot, outcomes, error codes."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cache
from typing import Generic, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

_TTFT_BUCKETS_S = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
_SUBMIT_BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_INTERVAL_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


Metric = TypeVar("Metric", Counter, Histogram)


class Labelled(Generic[Metric]):
    """A metric whose children are looked up once: every time the library's own look-up costs microseconds."""

    def __init__(self, metric: Metric) -> None:
        self.labels: Callable[..., Metric] = cache(metric.labels)


class StepHistogram(Collector):
    """A histogram cheap enough for every token: a bisection and two additions, no lock, one thread."""

    def __init__(self, name: str, documentation: str, buckets: tuple[float, ...]) -> None:
        self._name = name
        self._documentation = documentation
        self._buckets = buckets
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._buckets, value)] += count
        self._sum += value * count

    def collect(self) -> Iterator[HistogramMetricFamily]:
        cumulative, total = [], 0
        for bound, count in zip([*map(str, self._buckets), "+Inf"], self._counts, strict=True):
            total += count
            cumulative.append((bound, total))
        yield HistogramMetricFamily(self._name, self._documentation, buckets=cumulative, sum_value=self._sum)


class Metrics:
    """One per process, with its own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.responses = self._counters(
            "responses", "HTTP responses by route, status and error code", "route", "status", "code"
        )
        self.requests = self._counters(
            "requests", "Submitted requests by model and usage outcome", "model", "outcome"
        )
        self.tokens = self._counters("tokens", "Tokens by model and kind", "model", "kind")
        ttft = Histogram(
            "sluice_gateway_time_to_first_token_seconds",
            "From the request's headers to its first token",
            ["model"],
            buckets=_TTFT_BUCKETS_S,
            registry=self.registry,
        )
        self.ttft = Labelled(ttft)
        self.overhead = StepHistogram(
            "sluice_gateway_submit_seconds", "From the request's headers to its submission", _SUBMIT_BUCKETS_S
        )
        self.registry.register(self.overhead)
        self.inter_token = StepHistogram(
            "sluice_gateway_inter_token_seconds", "Between tokens of one stream", _INTERVAL_BUCKETS_S
        )
        self.registry.register(self.inter_token)
        self.open_requests = self._gauge("open_requests", "HTTP requests in progress")
        self.open_sockets = self._gauge("open_sockets", "WebSockets of clients")
        self.open_streams = self._gauge("open_streams", "Submitted requests in the stream table")
        self.buffered_body_bytes = self._gauge("buffered_body_bytes", "Request bodies held in memory")
        self.tasks = self._gauge("tasks", "asyncio tasks of the process, the scrape's own included")
        self.workers = self._gauge("workers", "Replicas with an open token connection")
        self.replicas_known = self._gauge("replicas_known", "Replicas the dispatcher named")
        self.dispatcher_connected = self._gauge("dispatcher_connected", "1 while the dispatcher is reachable")
        self.snapshot_age = self._gauge("snapshot_age_seconds", "Since keys and routes were last loaded")
        self.routes_age = self._gauge("routes_age_seconds", "Since routes were last known to be current")
        self.spool_pending_bytes = self._gauge("spool_pending_bytes", "Usage not yet in PostgreSQL")
        self.spool_used_fraction = self._gauge("spool_used_fraction", "Share of the spool's quota in use")
        self.spool_set_aside = self._gauge("spool_set_aside_bytes", "Usage records the ledger refuses so far")
        self.degradation = Gauge(
            "sluice_gateway_degradation_level",
            "How far a model's degradation goes, 0 to 5",
            ["model"],
            registry=self.registry,
        )
        self.slow_readers_cut = self._counter("slow_readers_cut", "Streams ended because nobody read them")
        self.gaps = self._counter("stream_gaps", "Streams ended because token frames were missing")
        self.stray_rows = self._counter("stray_rows", "Rows in token frames that nobody here waits for")
        self.failovers = self._counters(
            "failovers", "Streams that went to another replica: restarted, or continued after tokens", "kind"
        )
        self.settle_timeouts = self._counter(
            "settle_timeouts", "Cancelled rows without a final count in time"
        )

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def _gauge(self, name: str, documentation: str) -> Gauge:
        return Gauge(f"sluice_gateway_{name}", documentation, registry=self.registry)

    def _counters(self, name: str, documentation: str, *labels: str) -> Labelled[Counter]:
        return Labelled(Counter(f"sluice_gateway_{name}", documentation, labels, registry=self.registry))

    def _counter(self, name: str, documentation: str) -> Counter:
        return Counter(f"sluice_gateway_{name}", documentation, registry=self.registry)
