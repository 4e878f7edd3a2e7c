"""What protects a model version when expectations fail, and how much of the service is given up meanwhile.

Overloaded: requests wait longer than they were expected to when they were admitted. Then no batch is
admitted, flows over their share get nothing more into the queue, and of the rest only those below a cut-off.
"""

from policy.admission import Drain, flow_part, wait_ms
from policy.codel import Codel
from policy.fair_queue import FairQueue
from policy.ladder import Ladder
from policy.priority_cutoff import PriorityCutoff, priority_level, share_bucket
from policy.queue_settings import QueueSettings
from policy.waiting import LevelChange, Waiting

SLACK = 0.05  # of a deadline: an expectation that is off by so much has not failed


class Guards:
    def __init__(self, settings: QueueSettings, now_ms: float) -> None:
        self._codel = Codel(settings.codel_target_ms, settings.codel_interval_ms, now_ms)
        self._cutoff = PriorityCutoff(now_ms)
        self._ladder = Ladder()
        self.wait_ms = 0.0  # of the flow in the middle, of all flows by weight

    @property
    def level(self) -> int:
        return self._ladder.level

    @property
    def is_overloaded(self) -> bool:
        return self._codel.is_overloaded

    def priority(self, queue: FairQueue, waiting: Waiting, now_ms: float) -> int:
        """The request's level for the cut-off; the lowest is the last to be turned away."""
        state = queue.flows.get(waiting.flow)
        demand = (state.demand if state else 0) + waiting.choices
        part = max(1.0, queue.capacity * flow_part(queue, state, waiting.weight))
        return priority_level(waiting.flow.tenant, share_bucket(demand, part), now_ms)

    def sheds(self, queue: FairQueue, waiting: Waiting, priority: int) -> tuple[str, int, int] | None:
        """Why it is turned away: message, figure and limit. None: it is not."""
        if self.is_overloaded:
            state = queue.flows.get(waiting.flow)
            if state is not None and state.is_over and state.waiting:
                part = int(queue.part(state))
                return "the model is overloaded, and others are within their share", state.demand, part
        if not self._cutoff.admits(priority):
            return "the model is overloaded", priority, self._cutoff.cutoff
        return None

    def asked(self, priority: int, *, admitted: bool) -> None:
        self._cutoff.asked(priority, admitted=admitted)

    def left(self, waiting: Waiting, now_ms: float) -> None:
        """It begins to run."""
        slack_ms = SLACK * (waiting.deadline_ms - waiting.arrived_ms)
        self._codel.left(now_ms - waiting.arrived_ms - waiting.promised_ms - slack_ms)

    def tick(self, queue: FairQueue, drain: Drain, now_ms: float) -> LevelChange | None:
        self._codel.tick(now_ms, is_empty=not queue.depth)
        self._cutoff.tick(now_ms, is_overloaded=self.is_overloaded)
        pressure, self.wait_ms = self._middle(queue, drain)
        return self._ladder.update(pressure, self.wait_ms, now_ms)

    def _middle(self, queue: FairQueue, drain: Drain) -> tuple[float, float]:
        """Pressure and wait of the flow in the middle by weight, the lower one of two: one tenant's backlog
        is no reason to give the others less."""
        flows = []
        for flow, state in queue.flows.items():
            flow_ms = wait_ms(queue, state, state.weight, state.queued_us, drain)
            flows.append((flow_ms / max(1.0, state.deadline_ms), flow_ms, flow, state.weight))
        total = sum(weight for _, _, _, weight in flows)
        below = 0.0
        for pressure, flow_ms, _, weight in sorted(flows):
            below += weight
            if 2 * below >= total:
                return pressure, flow_ms
        return 0.0, 0.0
