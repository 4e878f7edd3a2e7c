"""The fleet as Prometheus reads it: figures of each worker as it last reported them. No Django.

Counters begin anew when a worker does. Labels are bounded: names of workers and models, queue classes.
"""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gpuworker.wire.messages import WorkerView
from modelsvc.fleet_contracts import FleetSnapshot

Figure = Callable[[WorkerView], float]

_COUNTERS: list[tuple[str, str, Figure]] = [
    ("preemptions", "Sequences that had to give up their KV blocks", lambda w: w.preemptions),
    ("swaps", "Of these, to host memory", lambda w: w.swaps),
    (
        "usage_mismatches",
        "Requests whose upstream counted otherwise than the worker did",
        lambda w: w.usage_mismatches,
    ),
]
_GAUGES: list[tuple[str, str, Figure]] = [
    ("ready", "1 while the worker answers and takes new work", lambda w: w.state == "ready"),
    ("full", "1 while it takes nothing, e.g. because its upstream does not answer", lambda w: w.full),
    ("running", "Sequences holding KV blocks", lambda w: w.running),
    ("waiting", "Sequences accepted, not yet holding KV blocks", lambda w: w.waiting),
    ("paused", "Sequences left out of the last step, their KV kept", lambda w: w.paused),
    ("pending_prefill_tokens", "Prompt tokens still to compute", lambda w: w.pending_prefill_tokens),
    ("kv_blocks", "Blocks of the KV pool", lambda w: w.blocks),
    ("kv_free_blocks", "Blocks that nobody refers to, cached prefixes included", lambda w: w.free_blocks),
    ("step_seconds", "Length of the last step", lambda w: w.step_ms / 1000),
    ("report_age_seconds", "Since the dispatcher last heard of it", lambda w: w.age_ms / 1000),
]


class FleetCollector(Collector):
    def __init__(self, snapshot: FleetSnapshot, now_ms: int) -> None:
        self._snapshot = snapshot
        self._now_ms = now_ms

    def collect(self) -> Iterator[Metric]:
        snapshot, labels = self._snapshot, ["worker", "model"]
        for families, figures in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for name, documentation, figure in figures:
                family = families(f"sluice_worker_{name}", documentation, labels=labels)
                for worker in snapshot.workers:
                    family.add_metric([worker.id, worker.model], figure(worker))
                yield family
        queued = GaugeMetricFamily(
            "sluice_queue_depth", "Requests that wait for a replica", labels=["model", "class"]
        )
        depths: dict[tuple[str, str], int] = {}
        for queue in snapshot.queues:  # a model has one for each of its versions
            depths[queue.model, queue.klass] = depths.get((queue.model, queue.klass), 0) + queue.depth
        for (model, klass), depth in depths.items():
            queued.add_metric([model, klass], depth)
        yield queued
        for name, documentation in (("wanted", "Replicas that are to run"), ("ready", "Of these, do")):
            replicas = GaugeMetricFamily(
                f"sluice_deployment_{name}", documentation, labels=["model", "digest", "role"]
            )
            for view in snapshot.deployments:
                replicas.add_metric([view.model, view.digest, view.role], getattr(view, name))
            yield replicas
        age_s = max(0, self._now_ms - snapshot.at_ms) / 1000
        yield GaugeMetricFamily("sluice_fleet_age_seconds", "Age of all these figures", value=age_s)


def fleet_metrics(snapshot: FleetSnapshot, now_ms: int) -> bytes:
    registry = CollectorRegistry()
    registry.register(FleetCollector(snapshot, now_ms))
    return generate_latest(registry)
