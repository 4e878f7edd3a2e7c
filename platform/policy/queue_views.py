"""What people see of a model version's queues. Linear in what waits: for once a second, not for decisions."""

from collections.abc import Iterable

from policy.fair_queue import FairQueue
from policy.flow import BATCH, BATCH_URGENT
from policy.flow_state import FlowState
from policy.waiting import FlowView


def flows_of(queues: Iterable[FairQueue], klass: str) -> list[FlowState]:
    """Batch that became urgent is batch to people."""
    wanted = (BATCH, BATCH_URGENT) if klass == BATCH else (klass,)
    return [state for state in all_flows(queues) if state.flow.klass in wanted]


def all_flows(queues: Iterable[FairQueue]) -> list[FlowState]:
    return [state for queue in queues for state in queue.flows.values()]


def depth(states: Iterable[FlowState]) -> int:
    return sum(len(state.waiting) for state in states)


def oldest_ms(states: Iterable[FlowState], now_ms: float) -> float:
    """How long the one that waits longest has waited; 0 when nothing waits."""
    arrived = (waiting.arrived_ms for state in states for waiting in state.waiting)
    return max(0.0, now_ms - min(arrived, default=now_ms))


def tenants(states: Iterable[FlowState]) -> int:
    return len({state.flow.tenant for state in states})


def flow_views(states: Iterable[FlowState]) -> list[FlowView]:
    """The one with the most queued work first."""
    views = [
        FlowView(
            flow=state.flow,
            weight=state.weight,
            queued=len(state.waiting),
            running=state.running_rows,
            queued_us=state.queued_us,
            work_ms_per_s=1000 * state.work_rate,
            is_over=state.is_over,
        )
        for state in states
    ]
    return sorted(views, key=lambda view: (-view.queued_us, view.flow))
