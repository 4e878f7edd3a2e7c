"""Until when each waiting request may wait: who has to start now or never, and batch that becomes urgent.

Keeps no queue and decides no order.
"""

from math import inf

from policy.flow import BATCH
from policy.removable_heap import RemovableHeap
from policy.waiting import Waiting
from policy.work import WorkEstimate

URGENT_SLACK = 2  # batch is urgent when only so many times its expected service is left


class Deadlines:
    """`inflation`: a prompt takes so many times its machine time, as it shares its steps with decodes."""

    def __init__(self, inflation: float) -> None:
        self._inflation = inflation
        self._starts: RemovableHeap[Waiting] = RemovableHeap()  # by when they have to start
        self._urgent: RemovableHeap[Waiting] = RemovableHeap()  # batch, by when it becomes urgent

    def __len__(self) -> int:
        return len(self._starts) + len(self._urgent)

    @property
    def entries(self) -> int:
        """Those of requests that left included: what it occupies."""
        return self._starts.entries + self._urgent.entries

    def enter(self, waiting: Waiting, estimate: WorkEstimate) -> None:
        """It waits from now on; `latest_ms` says when it has to start."""
        waiting.latest_ms = waiting.deadline_ms - self._inflation * estimate.prefill_ms(waiting)
        if waiting.whole_by_ms < inf:
            waiting.latest_ms = min(waiting.latest_ms, waiting.whole_by_ms - waiting.service_ms)
        self._starts.push((waiting.latest_ms, waiting.sequence), waiting.key, waiting)
        if waiting.flow.klass == BATCH:
            service_ms = estimate.service_ms(waiting, self._inflation)
            urgent_ms = waiting.deadline_ms - URGENT_SLACK * service_ms
            self._urgent.push((urgent_ms, waiting.sequence), waiting.key, waiting)

    def leave(self, waiting: Waiting) -> None:
        self._starts.remove(waiting.key)
        self._urgent.remove(waiting.key)

    def late(self, now_ms: float) -> list[Waiting]:
        """Those that cannot start in time any more; they leave."""
        return self._starts.pop_until((now_ms,))

    def urgent(self, now_ms: float) -> list[Waiting]:
        """Batch that became urgent. Each is said once."""
        return self._urgent.pop_until((now_ms,))
