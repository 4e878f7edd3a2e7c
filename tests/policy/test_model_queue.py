"""One model version's queue: whose turn it is, where it runs, who is refused, dropped or hurried."""

from itertools import pairwise
from math import exp
from random import Random

import pytest

from policy.flow import BATCH, BATCH_URGENT, INTERACTIVE, Flow
from policy.model_queue import ModelQueue
from policy.placement import Replica
from policy.queue_settings import QueueSettings
from tests.policy.queue_fleet import COST, Fleet, replica_make, waiting_make


def queue_make(*replicas: Replica, settings: QueueSettings | None = None) -> ModelQueue:
    queue = ModelQueue(settings or QueueSettings(), 0.0)
    queue.replicas_set(replicas or [replica_make()])
    return queue


def taken(queue: ModelQueue, now_ms: float = 0.0) -> list[object]:
    keys = []
    while placement := queue.take(now_ms):
        keys.append(placement.waiting.key)
    return keys


# -- turns ------------------------------------------------------------------------------------------------


def test_requests_of_a_tenant_start_by_deadline_and_tenants_take_turns() -> None:
    queue = queue_make()
    for number, (tenant, deadline_ms) in enumerate([("a", 9000), ("a", 5000), ("b", 9500), ("a", 7000)]):
        queue.submit(waiting_make(number, tenant, deadline_ms=deadline_ms, prompt=100), 0)
    assert taken(queue) == [1, 2, 3]  # then the window is full
    queue.replica_update(replica_make(rows=3))
    for key in (1, 2, 3):
        queue.prefilled(key)
    assert taken(queue) == [0]


def test_a_thousand_keys_of_a_tenant_are_one_tenant() -> None:
    """The queue is told the tenant; nothing else makes a flow."""
    fleet = Fleet(1)
    for _ in range(300):
        fleet.submit("many keys", output=100, deadline_ms=1e6)
    fleet.submit("one key", output=100, deadline_ms=1e6)
    assert fleet.started.get(301) is None
    fleet.advance(300)
    assert fleet.started[301] <= 200


def test_batch_waits_for_interactive_requests() -> None:
    queue = queue_make()
    queue.submit(waiting_make(1, klass=BATCH, deadline_ms=1e8, prompt=300), 0)
    queue.submit(waiting_make(2, prompt=300), 0)
    assert taken(queue) == [2]
    queue.prefilled(2)
    queue.replica_update(replica_make(rows=1))
    assert taken(queue) == [1]


def test_a_replica_that_refused_it_gives_it_back_its_old_place_and_what_it_was_charged() -> None:
    queue = queue_make(replica_make("r0"), replica_make("r1"))
    for number in range(3):
        queue.submit(waiting_make(number, "a", prompt=300), 0)
    placement = queue.take(0)
    assert placement is not None
    assert placement.waiting.key == 0
    queue.replica_update(replica_make(placement.replica, takes_more=False))
    queue.requeue(placement.waiting, 10)
    assert queue.depth(INTERACTIVE) == 3
    queue.submit(waiting_make(9, "b", prompt=300), 10)
    assert taken(queue, 20) == [0]  # a was charged nothing, so it is still a's turn
    queue.replica_update(replica_make("r0"))
    assert taken(queue, 30) == [9]


def test_without_costs_everything_is_charged_at_once_and_given_back_at_once() -> None:
    queue = queue_make(replica_make(cost=None), replica_make("r1", cost=None))
    queue.submit(waiting_make(1, "a", prompt=300), 0)
    queue.submit(waiting_make(2, "b", prompt=300), 0)
    first = queue.take(0)
    assert first is not None
    queue.requeue(first.waiting, 0)
    again = queue.take(0)
    assert again is not None
    assert again.waiting.key == first.waiting.key == 1


def test_what_is_neither_waiting_nor_placed_is_nobodys() -> None:
    queue = queue_make()
    assert queue.remove(1) is None
    queue.ended(1, 0)
    queue.prefilled(1)
    queue.worked("unknown", Flow("a", INTERACTIVE), 100)
    assert queue.replica_gone("unknown") == []
    waiting = waiting_make(1)
    queue.submit(waiting, 0)
    for state in ("waits", "runs"):
        with pytest.raises(ValueError, match="here already"):
            queue.submit(waiting_make(1), 0)
        assert state == "runs" or taken(queue) == [1]


def test_a_lost_request_without_charge_may_be_queued_again() -> None:
    queue = queue_make(replica_make("r0"))
    queue.submit(waiting_make(1), 0)
    assert taken(queue) == [1]
    (lost,) = queue.replica_gone("r0")
    assert queue.flows() == []
    queue.replica_update(replica_make("r1"))
    queue.requeue(lost, 5)
    placement = queue.take(5)
    assert placement is not None
    assert placement.replica == "r1"


# -- requests that ran before this queue was there ---------------------------------------------------------


def adopting(tenants: str, *, row_limit: int = 4) -> ModelQueue:
    """A queue that learns of one replica, and of a row for each of these tenants that runs there."""
    queue = queue_make(replica_make(rows=len(tenants), row_limit=row_limit))
    for number, tenant in enumerate(tenants, 1):
        queue.adopt(waiting_make(number, tenant, prompt=0, output=0), "r0", 0)
    return queue


def test_adopted_rows_count_as_their_flows_and_yield_as_they_would() -> None:
    queue = adopting("aaab")
    queue.submit(waiting_make(8, "a"), 0)
    queue.tick(250)
    assert queue.over_share() == {Flow("a", INTERACTIVE)}
    assert {view.flow.tenant: (view.queued, view.running) for view in queue.flows()} == {
        "a": (1, 3),
        "b": (0, 1),
    }
    assert taken(queue, 250) == []
    queue.submit(waiting_make(9, "c", at_ms=250), 250)
    assert taken(queue, 250) == [9]


def test_rows_of_nobody_keep_what_they_have() -> None:
    """So it is where a worker does not say whose they are."""
    queue = queue_make(replica_make(rows=4, row_limit=4))
    queue.submit(waiting_make(9, "c"), 0)
    queue.tick(250)
    assert taken(queue, 250) == []


def test_adopted_rows_end_once_and_leave_nothing() -> None:
    queue = adopting("ab")
    assert queue.remove(1) is None  # it does not wait
    for _ in range(2):
        queue.prefilled(1)
        queue.ended(1, 10)
    queue.tick(250)
    assert [view.flow.tenant for view in queue.flows()] == ["b"]
    assert [waiting.key for waiting in queue.replica_gone("r0")] == [2]
    assert queue.flows() == []
    queue.ended(2, 300)


@pytest.mark.parametrize(
    ("was_cut", "after_ms", "part"), [(False, 40, 1.0), (True, 40, 0.01), (True, 4_000, 1.0)]
)
def test_what_was_cut_short_counts_as_far_as_it_came(was_cut: bool, after_ms: float, part: float) -> None:
    # Given a request whose output is expected to take four seconds, and another that waits
    done = []
    for is_ended in (True, False):
        queue = queue_make(replica_make(rows=0, cost=None, row_limit=1))
        queue.submit(waiting_make(1, "a", prompt=1, output=100), 0)
        assert queue.take(0) is not None
        queue.prefilled(1)
        queue.submit(waiting_make(2, "b"), 0)
        queue.replica_update(replica_make(rows=1, cost=None, takes_more=False))
        queue.tick(1)  # from now on something waits
        if is_ended:
            queue.ended(1, after_ms, was_cut=was_cut)
        queue.tick(5_000)
        done.append(queue.drain_rate)
    # Then as much of its work counts as it had time for
    work_ms = 0.2 * 100
    factor = 1 - exp(-4_999 / 5_000)
    assert done[0] - done[1] == pytest.approx(factor * part * work_ms / 4_999, rel=0.05)


def test_a_whole_answer_that_would_not_be_done_in_time_is_dropped_before_it_starts() -> None:
    # Given ten tokens of about thirty milliseconds, which are to be there after a second, and no room
    queue = queue_make(replica_make(rows=20))
    late, stream = waiting_make(1, "a", output=10), waiting_make(2, "a", output=10)
    late.whole_by_ms = 1_000
    assert queue.submit(late, 0) is None
    assert queue.submit(stream, 0) is None
    assert late.latest_ms == pytest.approx(1_000 - late.service_ms)
    assert 200 < late.service_ms < 400
    assert queue.expired(late.latest_ms - 1) == []
    assert [waiting.key for waiting in queue.expired(late.latest_ms + 1)] == [1]
    # Then it can be told when to come back, and has a place then
    assert 1_000 <= queue.retry_after_ms(late, 700) <= 60_000


def test_the_end_of_an_adopted_row_says_nothing_of_how_fast_the_fleet_works() -> None:
    rates = []
    for is_ended in (True, False):
        queue = queue_make(replica_make(rows=1, cost=None, takes_more=False))
        queue.adopt(waiting_make(1, "a", prompt=1000), "r0", 0)
        queue.submit(waiting_make(2, "b"), 0)
        queue.tick(1)  # from now on something waits
        if is_ended:
            queue.ended(1, 100)
        queue.tick(250)
        rates.append(queue.drain_rate)
    assert rates[0] == rates[1]


def test_an_adopted_row_does_not_undo_what_its_flow_says_of_its_weight() -> None:
    queue = queue_make(replica_make(rows=1, takes_more=False))
    queue.submit(waiting_make(1, "a", weight=3.0), 0)
    queue.adopt(waiting_make(2, "a", weight=1.0), "r0", 0)
    queue.adopt(waiting_make(3, "b", weight=2.0), "r0", 0)
    assert {view.flow.tenant: view.weight for view in queue.flows()} == {"a": 3.0, "b": 2.0}


def test_adopting_what_is_here_or_on_a_replica_nobody_knows_is_an_error() -> None:
    queue = adopting("a")
    queue.submit(waiting_make(2, "b"), 0)
    for key in (1, 2):
        with pytest.raises(ValueError, match="here already"):
            queue.adopt(waiting_make(key), "r0", 0)
    with pytest.raises(ValueError, match="no replica"):
        queue.adopt(waiting_make(3), "r9", 0)
    assert sum(view.running + view.queued for view in queue.flows()) == 2


# -- shares -----------------------------------------------------------------------------------------------


def test_a_flow_over_its_share_leaves_a_part_of_the_fleet_to_others() -> None:
    fleet = Fleet(2, row_limit=10)
    fleet.submit("quiet", output=4000, deadline_ms=1e6)
    for _ in range(100):
        fleet.submit("noisy", prompt=16, output=4000, deadline_ms=1e6)
    fleet.advance(2000)
    assert fleet.queue.over_share() == {Flow("noisy", INTERACTIVE)}
    (noisy,) = [view for view in fleet.queue.flows() if view.flow.tenant == "noisy"]
    assert noisy.running == 15  # 0.8 of 19
    assert noisy.is_over
    number, _ = fleet.submit("quiet", output=10)
    assert fleet.started[number] == fleet.now_ms


def test_a_lone_flow_may_have_everything() -> None:
    fleet = Fleet(2, row_limit=10)
    for _ in range(100):
        fleet.submit("noisy", prompt=16, output=4000, deadline_ms=1e6)
    fleet.advance(2000)
    assert fleet.queue.over_share() == frozenset()
    assert len(fleet.started) == 20


def test_a_flow_over_its_share_may_use_an_idle_replica() -> None:
    """Its limit protects others' rows; an idle replica is in nobody's way."""
    queue = queue_make(replica_make("r0", row_limit=2), replica_make("r1", row_limit=2))
    queue.submit(waiting_make(0, "b", prompt=16), 0)
    for number in range(1, 5):
        queue.submit(waiting_make(number, "a", prompt=16), 0)
    assert len(taken(queue)) >= 2
    queue.replica_update(replica_make("r1", row_limit=2, rows=0))
    assert taken(queue) != []


def test_two_tenants_of_weights_one_and_three_are_served_one_to_three() -> None:
    fleet = Fleet(2)
    for _ in range(400):
        fleet.submit("one", weight=1.0, output=60, deadline_ms=1e7)
        fleet.submit("three", weight=3.0, output=60, deadline_ms=1e7)
    fleet.advance(3_000)
    before = fleet.service_ms(["one", "three"])
    fleet.advance(20_000)
    after = fleet.service_ms(["one", "three"])
    served = {tenant: after[tenant] - before[tenant] for tenant in after}
    assert served["three"] / served["one"] == pytest.approx(3, rel=0.1)


# -- refusals and drops -----------------------------------------------------------------------------------


def test_what_no_replica_can_hold_is_refused_and_what_none_can_hold_any_more_is_given_back() -> None:
    queue = queue_make(replica_make("small", max_tokens=100), replica_make("large", max_tokens=1000))
    refusal = queue.submit(waiting_make(1, prompt=1000), 0)
    assert refusal is not None
    assert (refusal.code, refusal.retry_after_ms, refusal.used, refusal.limit) == (
        "unservable",
        0,
        1001,
        1000,
    )
    queue.replica_update(replica_make("large", max_tokens=1000, takes_more=False))
    assert queue.submit(waiting_make(2, prompt=500), 0) is None
    assert queue.submit(waiting_make(3, prompt=50), 0) is None
    assert queue.unservable() == []
    queue.replica_gone("large")
    assert [waiting.key for waiting in queue.unservable()] == [2]
    assert queue.unservable() == []
    queue.replicas_set([])
    assert queue.unservable() == []  # one may come
    assert queue.submit(waiting_make(4, prompt=10**6, deadline_ms=1e9), 0) is None


def test_what_would_be_late_is_dropped_before_it_starts() -> None:
    queue = queue_make(replica_make(takes_more=False))
    queue.submit(waiting_make(1, deadline_ms=1000, prompt=500), 0)  # 100 ms of prompt beside decodes
    queue.submit(waiting_make(2, deadline_ms=2000, prompt=500), 0)
    assert queue.expired(900) == []
    queue.replica_update(replica_make())
    assert taken(queue, 901) == [2]
    assert [waiting.key for waiting in queue.expired(901)] == [1]
    assert queue.expired(901) == []
    assert queue.depth(INTERACTIVE) == 0


def test_a_backlog_is_refused_by_its_own_tenants_deadline_and_the_refusal_leaves_nothing() -> None:
    queue = queue_make(replica_make(takes_more=False))
    refusals = [queue.submit(waiting_make(number, "a", output=200), 0) for number in range(60)]
    admitted = refusals.count(None)
    assert 0 < admitted < 60
    assert all(refusal is not None for refusal in refusals[admitted:])
    assert queue.depth(INTERACTIVE) == admitted
    assert queue.submit(waiting_make("other", "b", output=200), 0) is None


def test_an_overloaded_model_takes_no_batch_and_nothing_more_of_flows_over_their_share() -> None:
    """Replicas do nothing for seconds, which no expectation foresaw."""
    queue = queue_make(replica_make(row_limit=2, takes_more=False))
    for number in range(6):
        assert queue.submit(waiting_make(number, "ab"[number % 2], output=10), 0) is None
    for now_ms in range(250, 3001, 250):
        queue.tick(now_ms)
    queue.replica_update(replica_make(row_limit=2))
    assert taken(queue, 3000) == [0, 1]  # a row each, which is their part
    queue.tick(3500)
    batch = queue.submit(waiting_make("batch", klass=BATCH, deadline_ms=1e8), 3500)
    over = queue.submit(waiting_make("over", "a", at_ms=3500), 3500)
    within = queue.submit(waiting_make("within", "c", at_ms=3500), 3500)
    assert batch is not None
    assert over is not None
    assert (batch.code, over.code, within) == ("shed", "shed", None)
    assert 5000 <= over.retry_after_ms <= 6000


def test_the_cutoff_turns_tenants_away_while_even_those_within_their_share_wait() -> None:
    fleet = Fleet(1)
    guards = fleet.queue._entrance.guards
    guards._cutoff.cutoff = -1
    _, refusal = fleet.submit("a")
    assert refusal is not None
    assert (refusal.code, refusal.limit) == ("shed", -1)


def test_two_times_the_load_for_a_minute_loses_no_capacity_and_starts_nothing_late() -> None:
    fleet, number = Fleet(4), 0
    deadlines: dict[object, float] = {}
    refusals = 0
    while fleet.now_ms < 60_000:
        fleet.advance(50)
        for _ in range(3):  # 60 a second of 150 ms each, for 4 replicas
            number += 1
            key, refusal = fleet.submit(f"tenant {number * 7 % 20}", prompt=300, output=60)
            refusals += refusal is not None
            deadlines[key] = fleet.now_ms + 10_000
    assert fleet.busy_ms >= 0.95 * 4 * fleet.now_ms
    assert all(at_ms <= deadlines[key] for key, at_ms in fleet.started.items())
    assert refusals > 0.3 * number
    assert len(fleet.expired) < 0.05 * len(fleet.started)


def test_clients_that_come_back_when_told_get_in() -> None:
    fleet, number, rng = Fleet(4), 0, Random(1)
    back: list[tuple[float, int, str]] = []
    returned = admitted = 0
    while fleet.now_ms < 60_000:
        fleet.advance(50)
        due, back = [b for b in back if b[0] <= fleet.now_ms], [b for b in back if b[0] > fleet.now_ms]
        for _, prompt, tenant in due:
            returned += 1
            admitted += fleet.submit(tenant, prompt=prompt, output=60, is_retry=True)[1] is None
        for _ in range(3):
            number += 1
            tenant, prompt = f"tenant {rng.randrange(20)}", rng.randint(200, 400)
            _, refusal = fleet.submit(tenant, prompt=prompt, output=60, is_retry=False)
            if refusal is not None and rng.random() < 0.2:
                back.append((fleet.now_ms + refusal.retry_after_ms, prompt, tenant))
    assert returned > 50
    assert admitted >= 0.9 * returned


# -- batch ------------------------------------------------------------------------------------------------


def test_batch_keeps_a_tenth_of_the_machine_time_under_saturation() -> None:
    fleet, number = Fleet(2), 0
    for _ in range(40):
        fleet.submit("bulk", BATCH, output=100, deadline_ms=1e8)
    while fleet.now_ms < 120_000:
        number += 1
        fleet.submit(f"chat {number % 5}", prompt=300, output=60)
        fleet.submit("bulk", BATCH, output=100, deadline_ms=1e8)
        fleet.advance(50)
    batch_ms = fleet.served_ms[Flow("bulk", BATCH)]
    assert fleet.busy_ms >= 0.99 * 2 * fleet.now_ms
    assert 0.095 <= batch_ms / fleet.busy_ms <= 0.16


def test_batch_that_finds_no_room_keeps_no_replica_from_interactive_requests() -> None:
    """Batch stops where a fifth of the rows is left; nobody else has to wait because it waits."""
    queue = queue_make(replica_make(rows=28, max_rows=32, row_limit=32))
    for number in range(12):
        queue.submit(waiting_make(number, "bulk", BATCH, deadline_ms=1e8), 0)
    for now_ms in range(0, 5_000, 50):
        queue.replica_update(replica_make(rows=28, max_rows=32, row_limit=32, free=5_000 + now_ms))
        assert taken(queue, now_ms) == []
    queue.submit(waiting_make("chat", "b", at_ms=5_000), 5_000)
    assert taken(queue, 5_000) == ["chat"]


def test_batch_whose_deadline_is_near_is_served_among_interactive_requests() -> None:
    queue = queue_make(replica_make(takes_more=False))
    queue.submit(
        waiting_make(1, "bulk", BATCH, weight=2.0, deadline_ms=20_000, output=100), 0
    )  # 3 s of service
    queue.tick(13_900)
    assert queue.flows()[0].flow == Flow("bulk", BATCH)
    queue.tick(14_000)
    (view,) = queue.flows()
    assert (view.flow, view.weight) == (Flow("bulk", BATCH_URGENT), 0.5)
    assert (queue.depth(BATCH), queue.depth(INTERACTIVE), queue.tenants()) == (1, 0, 1)
    assert queue.oldest_ms(BATCH) == 14_000
    queue.replica_update(replica_make())
    assert taken(queue, 14_000) == [1]
    queue.worked("r0", Flow("bulk", BATCH_URGENT), 5_000_000)
    queue.ended(1, 15_000)
    assert queue.tenants() == 0


def test_batch_that_left_is_not_hurried() -> None:
    queue = queue_make(replica_make(takes_more=False))
    queue.submit(waiting_make(1, "bulk", BATCH, deadline_ms=20_000), 0)
    assert queue.remove(1) is not None
    queue.tick(19_000)
    assert queue.flows() == []


def test_at_the_first_level_batch_only_has_its_floor_and_idle_replicas() -> None:
    queue = queue_make(replica_make("r0", rows=1))
    queue.submit(waiting_make(1, klass=BATCH, deadline_ms=1e8), 0)
    queue._placer.level = 1
    assert taken(queue) == []
    queue.replica_update(replica_make("r1"))
    assert taken(queue) == [1]


# -- room that is kept ------------------------------------------------------------------------------------


def test_a_large_request_is_not_overtaken_for_ever() -> None:
    queue = queue_make(replica_make(rows=4, free=100), replica_make("r1", rows=4, free=50))
    queue.submit(waiting_make("large", "a", prompt=16 * 120, deadline_ms=60_000), 0)
    queue.submit(waiting_make(1, "b", prompt=16, deadline_ms=60_000), 0)
    assert taken(queue, 0) == [1]
    queue.submit(waiting_make(2, "b", prompt=16, deadline_ms=60_000), 600)
    assert taken(queue, 600) == [2]  # on the other one: this is when the first is kept
    queue.replica_update(replica_make("r1", rows=4, free=50, takes_more=False))
    queue.submit(waiting_make(3, "b", prompt=16, deadline_ms=60_000), 700)
    assert taken(queue, 700) == []
    queue.replica_update(replica_make(rows=2, free=200))
    placement = queue.take(800)
    assert placement is not None
    assert (placement.waiting.key, placement.replica) == ("large", "r0")
    queue.prefilled("large")
    queue.replica_update(replica_make(rows=3, free=100))
    assert taken(queue, 900) == [3]


def test_room_is_kept_elsewhere_when_the_replica_is_gone() -> None:
    queue = queue_make(replica_make(rows=4, free=100))
    queue.submit(waiting_make("large", "a", prompt=16 * 120), 0)
    assert taken(queue, 0) == []
    queue.tick(600)
    assert taken(queue, 600) == []
    queue.replica_gone("r0")
    queue.replica_update(replica_make("r1", rows=4, free=100))
    queue.submit(waiting_make(1, "b", prompt=16), 700)
    assert taken(queue, 700) == []
    queue.replica_update(replica_make("r1", rows=2, free=200))
    assert taken(queue, 900) == ["large"]


@pytest.mark.parametrize("leaves", ["removed", "expired"])
def test_room_is_kept_for_nobody_who_left(leaves: str) -> None:
    queue = queue_make(replica_make(rows=4, free=100))
    queue.submit(waiting_make("large", "a", prompt=16 * 120, deadline_ms=5_000), 0)
    assert taken(queue, 0) == []
    queue.tick(600)
    assert taken(queue, 600) == []
    queue.submit(waiting_make(1, "b", prompt=16, deadline_ms=60_000), 700)
    assert taken(queue, 700) == []
    if leaves == "removed":
        queue.remove("large")
    assert taken(queue, 6_000 if leaves == "expired" else 800) == [1]


# -- levels and views -------------------------------------------------------------------------------------


def test_levels_rise_with_what_most_tenants_wait_and_each_change_is_told_once() -> None:
    fleet, number = Fleet(1), 0
    while fleet.now_ms < 60_000:
        number += 1
        fleet.submit(f"tenant {number % 4}", prompt=300, output=60)
        fleet.advance(50)
    assert fleet.queue.level >= 2
    assert fleet.changes[0].before == 0
    assert all(earlier.after == later.before for earlier, later in pairwise(fleet.changes))
    assert fleet.queue.wait_ms > 3_000
    fleet.advance(100_000)
    assert fleet.queue.level == 0
    assert fleet.changes[-1].after == 0


def test_one_tenants_backlog_raises_no_level_for_the_others() -> None:
    fleet = Fleet(1)
    for _ in range(600):
        fleet.submit("noisy", output=400, deadline_ms=600_000)
    while fleet.now_ms < 30_000:
        for tenant in ("quiet", "calm"):
            assert fleet.submit(tenant, prompt=50, output=10)[1] is None
        fleet.advance(500)
    assert fleet.queue.level == 0
    assert fleet.queue.depth(INTERACTIVE) > 400
    assert fleet.expired == []


def test_at_the_second_level_flows_over_their_share_get_that_and_no_more() -> None:
    fleet = Fleet(1, row_limit=10)
    fleet.queue._placer.level = 2
    for tenant in "ab":
        fleet.submit(tenant, prompt=16, output=4000, deadline_ms=1e6)
    for _ in range(50):
        fleet.submit("noisy", prompt=16, output=4000, deadline_ms=1e6)
    fleet.advance(200)
    running = {view.flow.tenant: view.running for view in fleet.queue.flows()}
    assert running == {"a": 1, "b": 1, "noisy": 4}  # a third of ten, and up to a row more


def test_time_that_stands_still_or_goes_back_ticks_nothing() -> None:
    queue = queue_make()
    assert queue.tick(0) == []
    assert queue.tick(-5_000) == []
    assert queue.drain_rate == pytest.approx(0.8)


def test_views() -> None:
    queue = queue_make(replica_make(cost=COST))
    queue.submit(waiting_make(1, "a", prompt=300, output=10), 0)
    queue.submit(waiting_make(2, "b", prompt=300, output=90), 0)
    queue.submit(waiting_make(3, "a", BATCH, prompt=300, output=90, deadline_ms=1e8), 0)
    assert taken(queue, 100) == [1]
    first, *_, last = queue.flows()
    assert (first.queued, first.running, last.queued, last.running) == (1, 0, 0, 1)
    assert (queue.tenants(), queue.depth(INTERACTIVE), queue.depth(BATCH)) == (2, 1, 1)
    assert (queue.oldest_ms(INTERACTIVE), queue.level, queue.wait_ms) == (100, 0, 0.0)
    queue.remove(2)
    assert queue.oldest_ms(INTERACTIVE) == 0


# -- what a fleet of one replica must not do --------------------------------------------------------------


@pytest.mark.parametrize("gap_ms", [100, 400, 1_100])
def test_a_tenant_that_comes_and_goes_is_served_beside_a_backlog(gap_ms: int) -> None:
    """The backlog is alone when its first finds no room: a replica that is kept for it then, while nobody
    else is there, must not stay closed to who comes later."""
    fleet = Fleet(1)
    for _ in range(100):
        fleet.submit("noisy", output=400, deadline_ms=600_000)
    fleet.advance(5_000)
    waits = []
    for _ in range(20):
        begun_ms = fleet.now_ms
        number, refusal = fleet.submit("quiet", prompt=50, output=4, deadline_ms=30_000)
        assert refusal is None
        while number not in fleet.done and fleet.now_ms - begun_ms < 10_000:
            fleet.advance(50)
        waits.append(fleet.started.get(number, fleet.now_ms) - begun_ms)
        fleet.advance(gap_ms)
    assert max(waits) <= 300


@pytest.mark.parametrize("deadline_ms", [10_000, 30_000])
def test_an_idle_fleet_takes_a_burst_that_it_has_room_for(deadline_ms: float) -> None:
    """However long the answers are: they run side by side."""
    fleet = Fleet(1, row_limit=40)
    refusals = [fleet.submit("a", output=600, deadline_ms=deadline_ms)[1] for _ in range(40)]
    assert refusals == [None] * 40
    fleet.advance(1_000)
    assert len(fleet.started) == 40


def test_what_was_measured_long_ago_is_forgotten() -> None:
    """A fleet that was full of long answers looks slow: nothing of it was done for a while."""
    fleet = Fleet(1)
    for _ in range(60):
        fleet.submit("a", output=2_000, deadline_ms=6e6)
    fleet.advance(30_000)
    slow = fleet.queue.drain_rate
    for number in range(1, fleet.number + 1):
        fleet.queue.remove(number)
    fleet.advance(20_000)
    assert slow < 0.5 < 0.7 < fleet.queue.drain_rate


def test_who_comes_to_a_fleet_that_another_one_has_filled_begins_at_once() -> None:
    # Given a flow that was alone, with more than every row there is
    queue = queue_make(replica_make(rows=0, max_rows=40, row_limit=10))
    for number in range(30):
        queue.submit(waiting_make(number, "noise", prompt=10), 0)
    queue.tick(250)
    begun = taken(queue, 250)
    for key in begun:
        queue.prefilled(key)
    assert len(begun) == 10
    assert taken(queue, 260) == []
    # When another one comes, a moment after the last division
    queue.submit(waiting_make("chat", "chat", prompt=10), 262)
    # Then it does not wait for the next tick
    assert taken(queue, 262) == ["chat"]


def test_who_was_let_in_once_is_let_in_again_and_its_lost_prompt_is_charged_to_nobody() -> None:
    # Given a full queue, and a placed request whose replica is lost before its prompt is computed
    queue = queue_make(replica_make(rows=0), settings=QueueSettings(queue_least=1, queue_most=1))
    queue.submit(waiting_make(1, "a", prompt=5_000), 0)
    queue.submit(waiting_make(2, "b"), 0)
    assert taken(queue)[:1] == [1]
    queue.replica_gone("r0")
    queue.replica_update(replica_make("r1", rows=0))
    queue.submit(waiting_make(3, "c"), 10)
    assert queue.submit(waiting_make(4, "d"), 10) is not None
    # When it comes again, with its age
    again = waiting_make("1 again", "a", prompt=5_000)
    assert queue.readmit(again, 10) is None
    # Then it waits, before those that were charged nothing either and came later
    assert queue.depth(INTERACTIVE) >= 2
    assert taken(queue, 10)[0] == "1 again"
    with pytest.raises(ValueError, match="here already"):
        queue.readmit(again, 10)


def test_what_was_interrupted_is_first_of_its_tenant_within_a_budget_and_delays_no_other() -> None:
    # Given a tenant with requests that wait, and many of it whose replica was lost
    queue = queue_make(replica_make(rows=0))
    for number in range(5):
        queue.submit(waiting_make(f"waiting {number}", "a", deadline_ms=5_000, prompt=100), 0)
    queue.submit(waiting_make("other", "b", deadline_ms=9_000, prompt=100), 0)
    lost = [waiting_make(f"lost {number}", "a", deadline_ms=60_000, prompt=1_000) for number in range(40)]
    for waiting in lost:
        waiting.was_lost = True
        assert queue.readmit(waiting, 0) is None
    # Then as many as the budget allows come before the others of their tenant, the rest after them
    first = [waiting for waiting in lost if waiting.comes_first]
    assert 0 < len(first) < len(lost)
    assert first == lost[: len(first)]
    order = [str(key) for key in _all_taken(queue)]
    of_a = [key for key in order if key != "other"]
    assert of_a[: len(first)] == [waiting.key for waiting in first]
    assert all(key.startswith("waiting") for key in of_a[len(first) : len(first) + 5])
    # And another tenant's request takes its turn as ever
    assert order.index("other") <= 2


def _all_taken(queue: ModelQueue) -> list[object]:
    """One after the other, on a replica that is done with each at once."""
    keys: list[object] = []
    while placement := queue.take(0):
        key = placement.waiting.key
        keys.append(key)
        queue.prefilled(key)
        queue.worked("r0", placement.waiting.flow, 1_000 * len(keys))
        queue.ended(key, 0)
        queue.replica_update(replica_make(rows=0))
    return keys


def test_what_no_replica_can_hold_any_more_is_not_let_in_again() -> None:
    queue = queue_make(replica_make(max_tokens=100))
    refusal = queue.readmit(waiting_make(1, prompt=100), 0)
    assert refusal is not None
    assert refusal.code == "unservable"
    assert queue.depth(INTERACTIVE) == 0
