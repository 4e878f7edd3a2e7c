"""A queue that follows another one: whom the other served more goes on from there, if it comes in time."""

from policy.flow import INTERACTIVE, Flow
from policy.model_queue import RESUME_MS, ModelQueue
from policy.queue_settings import QueueSettings
from tests.policy.queue_fleet import replica_make, waiting_make

GREEDY, MODEST = Flow("greedy", INTERACTIVE), Flow("modest", INTERACTIVE)


def queue_after(served_us: int) -> ModelQueue:
    """Of a queue whose greedy flow was given so much more than its modest one."""
    before = ModelQueue(QueueSettings(ageing=1e-9), 0.0)
    before.replica_update(replica_make(row_limit=1))
    for number, flow in enumerate((GREEDY, MODEST)):
        assert before.submit(waiting_make(number, flow.tenant), 0.0) is None
    for total_us in (0, served_us):
        before.worked("r0", GREEDY, total_us)
    leads = before.leads()
    assert leads[GREEDY] - leads[MODEST] == served_us
    after = ModelQueue(QueueSettings(ageing=1e-9), 0.0)
    after.resume(leads)
    return after


def order(queue: ModelQueue, now_ms: float) -> list[str]:
    """The tenants in turn, the greedy one having come first."""
    for number, flow in enumerate((GREEDY, MODEST)):
        assert queue.submit(waiting_make(number, flow.tenant, at_ms=now_ms), now_ms) is None
    found: list[str] = []
    while len(found) < 2:
        queue.replica_update(replica_make())
        placement = queue.take(now_ms)
        assert placement is not None
        found.append(placement.waiting.flow.tenant)
        queue.prefilled(placement.waiting.key)
        queue.ended(placement.waiting.key, now_ms)
    return found


def test_who_was_served_more_goes_on_behind_the_others() -> None:
    assert order(queue_after(1_000_000), 10.0) == ["modest", "greedy"]


def test_who_has_not_come_in_time_holds_nobody_back() -> None:
    # Given a successor to which nobody came
    queue = queue_after(1_000_000)
    queue.tick(RESUME_MS - 1)
    assert queue.leads().keys() == {GREEDY, MODEST}
    queue.tick(RESUME_MS)
    # Then none counts as active, and what the greedy one had is remembered
    assert queue.leads() == {GREEDY: 1_000_000}
