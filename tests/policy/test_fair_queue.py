"""Flows take turns by the machine time they were given; who asks for more than its share is known at once."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.fair_queue import FairQueue
from policy.flow import INTERACTIVE, Flow
from policy.room import IDLE, LANES, MORE, OWN, SHARE
from policy.shares import over_share, water_filling, water_level
from policy.waiting import Waiting
from tests.policy.queue_fleet import waiting_make

tenants = st.sampled_from("abcde")


def queue_make(flips: list[tuple[Flow, bool]] | None = None, capacity: float = 1e9) -> FairQueue:
    def flipped(flow: Flow, is_over: bool) -> None:
        if flips is not None:
            flips.append((flow, is_over))

    queue = FairQueue(ageing=0.5, ageing_most_ms=5_000, flipped=flipped, now_ms=0)
    queue.divide(capacity)
    return queue


def numbered(number: int, tenant: str = "a", **fields: object) -> Waiting:
    waiting = waiting_make(number, tenant, **fields)  # type: ignore[arg-type]
    waiting.sequence, waiting.work_us = number, 1000
    return waiting


def turns(queue: FairQueue, *lanes: int) -> list[str]:
    return [state.flow.tenant for state in queue.turns(lanes or LANES)]


def test_within_a_flow_the_earliest_deadline_is_first_then_who_came_first() -> None:
    queue = queue_make()
    late, soon, same = (
        numbered(1, deadline_ms=900),
        numbered(2, deadline_ms=500),
        numbered(3, deadline_ms=500),
    )
    for waiting in (late, soon, same):
        queue.push(waiting)
    order = []
    while queue.depth:
        (state,) = queue.turns()
        head = state.waiting.head()
        assert head is not None
        order.append(head.key)
        queue.remove(head)
    assert order == [2, 3, 1]


def test_the_flow_that_was_given_least_is_next_ties_by_name() -> None:
    queue = queue_make()
    for number, tenant in enumerate("cab"):
        queue.push(numbered(number, tenant))
    assert turns(queue) == ["a", "b", "c"]
    queue.charge(Flow("a", INTERACTIVE), 500, 1.0)
    queue.charge(Flow("b", INTERACTIVE), 100, 1.0)
    assert turns(queue) == ["c", "b", "a"]
    queue.charge(Flow("b", INTERACTIVE), -100, 1.0)
    assert turns(queue) == ["b", "c", "a"]


@given(st.lists(st.floats(1, 250), min_size=20, max_size=150), st.floats(0.5, 4), st.floats(0.5, 4))
def test_backlogged_flows_differ_in_service_by_no_more_than_two_quanta(
    costs: list[float], weight_a: float, weight_b: float
) -> None:
    queue, weights = queue_make(capacity=2), {"a": weight_a, "b": weight_b}
    for number in range(400):
        tenant = "ab"[number % 2]
        queue.push(numbered(number, tenant, weight=weights[tenant]))
    served = dict.fromkeys("ab", 0.0)
    for cost_ms in costs:
        state = next(iter(queue.turns()))
        head = state.waiting.head()
        assert head is not None
        queue.start(head)
        queue.charge(state.flow, round(1000 * cost_ms), head.weight)
        served[state.flow.tenant] += cost_ms
        assert abs(served["a"] / weight_a - served["b"] / weight_b) <= 2 * 250 / min(weight_a, weight_b)


def test_a_flow_that_left_remembers_what_it_is_charged_later() -> None:
    queue = queue_make()
    gone, stays = numbered(1, "a"), numbered(2, "b")
    queue.push(gone)
    queue.push(stays)
    queue.start(gone)
    queue.stop(gone)
    assert Flow("a", INTERACTIVE) not in queue.flows
    queue.charge(Flow("a", INTERACTIVE), 900, 1.0)
    queue.push(numbered(3, "a"))
    assert turns(queue) == ["b", "a"]


def test_a_new_weight_counts_from_now_on() -> None:
    queue = queue_make()
    queue.push(numbered(1, "a", weight=1.0))
    assert (queue.weight, queue.queued_weight) == (1.0, 1.0)
    running = numbered(2, "b", weight=1.0)
    queue.push(running)
    queue.start(running)
    assert (queue.weight, queue.queued_weight) == (2.0, 1.0)
    queue.push(numbered(3, "a", weight=3.0))
    queue.push(numbered(4, "b", weight=2.0))
    assert (queue.weight, queue.queued_weight) == (5.0, 5.0)
    queue.divide(10)
    assert (queue.weight, queue.queued_weight) == (5.0, 5.0)


def test_waiting_is_worth_half_of_fair_service_up_to_a_bound_and_nothing_to_who_is_over() -> None:
    queue = queue_make(capacity=100)
    queue.push(numbered(1, "old", at_ms=0))
    queue.push(numbered(2, "new", at_ms=2000))
    queue.charge(Flow("old", INTERACTIVE), 400_000, 1.0)
    assert turns(queue) == ["new", "old"]
    queue.tick(2000, 2000, drain_rate=1.0)  # each is given half a second a second: 2 s of waiting are 500 ms
    assert turns(queue) == ["old", "new"]
    queue.charge(Flow("old", INTERACTIVE), 101_000, 1.0)
    assert turns(queue) == ["new", "old"]
    queue.tick(1e9, 1e9, drain_rate=1.0)
    assert turns(queue) == ["new", "old"]
    queue.divide(1)
    for number in (3, 4):
        queue.push(numbered(number, "old", at_ms=0))
    queue.tick(1e9, 1e9, drain_rate=100.0)
    assert turns(queue, SHARE) == ["new"]
    assert turns(queue) == ["new", "old"]


def test_a_flow_over_its_share_stands_in_the_lane_of_what_it_has() -> None:
    # Given ten rows for two flows that want more, of which each may have 80 % of its five
    queue = FairQueue(ageing=0.5, ageing_most_ms=5_000, flipped=lambda *_: None, now_ms=0, own_part=0.8)
    requests = [numbered(number, tenant) for number, tenant in enumerate("ab" * 20)]
    for request in requests:
        queue.push(request)
    queue.divide(10)
    stood = []
    for request in requests[:12:2]:
        stood.append(queue.flows[request.flow].lane)
        queue.start(request)
    # Then its next request may take rows of its own, then only replicas that idle
    assert stood == [OWN, OWN, OWN, OWN, IDLE, IDLE]


def test_the_first_that_has_rows_of_its_own_has_its_turn_though_nothing_is_open_for_it() -> None:
    queue = FairQueue(ageing=0.5, ageing_most_ms=5_000, flipped=lambda *_: None, now_ms=0, own_part=0.8)
    for number, tenant in enumerate("abcabc" * 5):
        queue.push(numbered(number, tenant))
    queue.divide(9)
    queue.charge(Flow("a", INTERACTIVE), 1_000, 1.0)
    # It may need that room is kept for it: the others can wait for theirs
    assert turns(queue, SHARE) == ["b"]
    assert turns(queue, SHARE, OWN) == ["b", "c", "a"]


def test_at_the_second_level_of_degradation_nobody_has_more_than_its_part() -> None:
    # Given a flow that may use what another one leaves
    queue = FairQueue(ageing=0.5, ageing_most_ms=5_000, flipped=lambda *_: None, now_ms=0, own_part=0.8)
    for number in range(30):
        queue.push(numbered(number, "a"))
    other = numbered(99, "b")
    queue.push(other)
    for number in range(6):
        queue.start(numbered(number, "a"))
    queue.divide(10)
    assert turns(queue, MORE) == ["a"]
    queue.divide(10, is_guaranteed_only=True)
    assert turns(queue, MORE) == []
    assert turns(queue, IDLE) == ["a"]


def test_an_empty_queue_ticks() -> None:
    queue = queue_make()
    queue.tick(250, 250, drain_rate=1.0)
    queue.divide(5)
    assert queue.level == inf
    assert turns(queue) == []


def test_work_that_comes_for_flows_without_a_queue_is_light() -> None:
    queue = queue_make()
    for number in range(10):
        light = numbered(number, "light")
        queue.arrive(light, deadline_ms=1000)
        queue.start(light)
    queue.arrive(numbered(99, "heavy"), deadline_ms=1000)
    queue.tick(250, 250, drain_rate=1.0)
    assert queue.light_rate == pytest.approx(0.04 * (1 - 2.718281828 ** (-0.05)), rel=0.01)
    assert queue.flows[Flow("light", INTERACTIVE)].arrival_rate == pytest.approx(queue.light_rate)


# -- shares -----------------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(st.sampled_from(["push", "start", "stop", "remove", "divide"]), tenants, st.integers(1, 4)),
    max_size=60,
)


@given(steps, st.integers(1, 12))
def test_who_is_over_its_share_is_what_the_formula_says_and_every_flip_is_told(
    events: list[tuple[str, str, int]], capacity: int
) -> None:
    flips: list[tuple[Flow, bool]] = []
    queue = queue_make(flips, capacity)
    weights = dict(zip("abcde", (1.0, 2.0, 0.5, 1.0, 4.0), strict=True))
    waiting: dict[str, list[Waiting]] = {tenant: [] for tenant in weights}
    running: dict[str, list[Waiting]] = {tenant: [] for tenant in weights}
    for number, (event, tenant, choices) in enumerate(events):
        if event == "push":
            waiting[tenant].append(numbered(number, tenant, weight=weights[tenant], choices=choices))
            queue.push(waiting[tenant][-1])
        elif event == "divide":
            capacity = 3 * choices
        elif event == "stop" and running[tenant]:
            queue.stop(running[tenant].pop())
        elif event in ("start", "remove") and waiting[tenant]:
            request = waiting[tenant].pop(0)
            (queue.start if event == "start" else queue.remove)(request)
            if event == "start":
                running[tenant].append(request)
        queue.divide(capacity)
        demands = {t: sum(w.choices for w in (*waiting[t], *running[t])) for t in weights}
        demands = {tenant: demand for tenant, demand in demands.items() if demand}
        over = over_share(demands, weights, capacity, least=1) if len(demands) > 1 else frozenset()
        assert {flow.tenant for flow, state in queue.flows.items() if state.is_over} == over
        assert {flow.tenant: state.demand for flow, state in queue.flows.items()} == demands
        told: dict[Flow, bool] = {}
        for flow, is_over in flips:
            assert told.get(flow, False) != is_over
            told[flow] = is_over
        assert {flow.tenant for flow, is_over in told.items() if is_over} == over
        assert queue.depth == sum(map(len, waiting.values()))
        assert queue.queued_us == 1000 * queue.depth
        assert queue.weight == pytest.approx(sum(weights[tenant] for tenant in demands))
        assert set(turns(queue)) == {tenant for tenant, requests in waiting.items() if requests}
        assert set(turns(queue, SHARE)) == set(turns(queue)) - over


@given(st.dictionaries(tenants, st.integers(1, 200), min_size=1), st.integers(1, 300))
def test_the_water_level_is_that_of_the_max_min_division(wanted: dict[str, int], capacity: int) -> None:
    weights = dict(zip("abcde", (1.0, 2.0, 0.5, 1.0, 4.0), strict=True))
    level = water_level(((demand, weights[tenant]) for tenant, demand in wanted.items()), capacity)
    parts = water_filling(wanted, weights, capacity)
    for tenant, demand in wanted.items():
        assert min(demand, level * weights[tenant]) == pytest.approx(parts[tenant], abs=1e-6)
    assert (level == inf) == (sum(wanted.values()) <= capacity)
