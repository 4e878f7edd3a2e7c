"""What controllers are told of the fleet."""

from collections.abc import Iterable
from heapq import nlargest

from dispatch.members import Members
from dispatch.versions import Version
from gpuworker.wire.messages import FLEET_FLOWS, FleetState, FlowView, QueueView
from policy.flow import CLASSES


def fleet_state(
    members: Members,
    versions: Iterable[Version],
    *,
    seq: int,
    now_ms: float,
    unix_ms: int,
    submitted: int,
    refused: int,
) -> FleetState:
    workers = [w.view(now_ms) for w in sorted(members.workers.values(), key=lambda w: w.hello.id)]
    by_digest = sorted(versions, key=lambda version: version.digest)
    return FleetState(
        seq=seq,
        at_ms=unix_ms,
        workers=workers,
        queues=[view for version in by_digest for view in _queue_views(version)],
        gateways=[g.view() for g in sorted(members.gateways.values(), key=lambda g: g.id) if g.id],
        submitted=submitted,
        refused=refused,
        tokens_per_s=sum(worker.tokens_per_s for worker in workers),
        flows=_flow_views(by_digest),
    )


def _queue_views(version: Version) -> list[QueueView]:
    queue = version.queue
    return [
        QueueView(
            model=version.model,
            klass=klass,
            depth=queue.depth(klass),
            oldest_ms=int(queue.oldest_ms(klass)),
            tenants=queue.tenants(),
            level=queue.level,
            wait_ms=int(queue.wait_ms),
        )
        for klass in CLASSES
    ]


def _flow_views(versions: Iterable[Version]) -> list[FlowView]:
    """Those with most work queued, of all versions."""
    found = [(view, version.model) for version in versions for view in version.queue.flows()]
    most = nlargest(FLEET_FLOWS, found, key=lambda pair: (pair[0].queued_us, pair[0].flow))
    return [
        FlowView(
            model=model,
            tenant=view.flow.tenant,
            klass=view.flow.klass,
            queued=view.queued,
            running=view.running,
            work_ms_per_s=view.work_ms_per_s,
        )
        for view, model in most
    ]
