"""What a version's queue finds out about everybody: who is over its share, and how far degradation goes.

Said when it changes, and again every second while there is anything to say: whoever hears nothing more for a
few seconds forgets it.
"""

import logging
from collections.abc import Iterable

from dispatch.fleet import Gateway, Worker
from dispatch.members import Members
from dispatch.versions import Version
from gpuworker.wire.messages import Pressure, Shares
from policy.waiting import LevelChange

logger = logging.getLogger(__name__)

REPEAT_MS = 1_000
LOOK_MS = 50  # between two looks at the shares: at hundreds of flows one takes a while


class Announcing:
    def __init__(self, members: Members) -> None:
        self._members = members

    def shares_tell(self, version: Version, now_ms: float) -> None:
        """Tells the workers that hold the version which flows are over their share."""
        if now_ms - version.looked_ms < LOOK_MS:
            return
        version.looked_ms = now_ms
        over = version.queue.over_share()
        is_due = bool(over) and now_ms - version.told_over_ms >= REPEAT_MS
        if over != version.over or is_due:
            version.over, version.told_over_ms = over, now_ms
            message = _shares(version)
            for worker in self._members.workers.values():
                if worker.hello.digest == version.digest:
                    worker.peer.send(message)

    def levels_tell(self, version: Version, changes: Iterable[LevelChange], now_ms: float) -> None:
        """Tells the gateways of the version's degradation."""
        has_changed = False
        for change in changes:
            has_changed = True
            logger.warning(
                "model %s: degradation level %d, was %d: a request waits %.0f ms, %.0f %% of its deadline",
                version.model,
                change.after,
                change.before,
                change.wait_ms,
                100 * change.pressure,
            )
        if has_changed or (version.queue.level and now_ms - version.told_level_ms >= REPEAT_MS):
            version.told_level_ms = now_ms
            self._members.tell_gateways(_pressure(version))


def worker_inform(worker: Worker, version: Version) -> None:
    """It has just joined."""
    if version.over:
        worker.peer.send(_shares(version))


def gateway_inform(gateway: Gateway, versions: Iterable[Version]) -> None:
    """It has just joined."""
    for version in versions:
        if version.queue.level:
            gateway.peer.send(_pressure(version))


def _shares(version: Version) -> Shares:
    return Shares(digest=version.digest, over=sorted((flow.tenant, flow.klass) for flow in version.over))


def _pressure(version: Version) -> Pressure:
    queue = version.queue
    return Pressure(digest=version.digest, level=queue.level, wait_ms=int(queue.wait_ms))
