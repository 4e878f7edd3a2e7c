"""Virtual time bounds what flows differ in service, nobody saves up, and shares are fair, full and steady."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.shares import VirtualTime, equal_parts, over_share, water_filling

QUANTUM_MS = 250.0
quanta = st.lists(st.floats(0.5, QUANTUM_MS), min_size=20, max_size=200)
flows = st.sampled_from("abcde")
demands = st.dictionaries(flows, st.integers(0, 200), min_size=1)
weights = st.fixed_dictionaries({flow: st.floats(0.1, 10) for flow in "abcde"})


def serve(time: VirtualTime[str], costs: list[float], backlogged: list[str]) -> dict[str, float]:
    """The least served flow gets each quantum."""
    served = dict.fromkeys(backlogged, 0.0)
    for cost_ms in costs:
        flow = time.order(backlogged)[0]
        time.charge(flow, cost_ms)
        served[flow] += cost_ms
    return served


# -- virtual time -----------------------------------------------------------------------------------------


@given(quanta, st.floats(0.5, 4), st.floats(0.5, 4))
def test_two_backlogged_flows_differ_by_at_most_two_quanta_per_weight(
    costs: list[float], weight_a: float, weight_b: float
) -> None:
    time: VirtualTime[str] = VirtualTime()
    time.activate("a", weight_a)
    time.activate("b", weight_b)
    gaps = []
    served = {"a": 0.0, "b": 0.0}
    for cost_ms in costs:
        (flow,) = (f for f, ms in serve(time, [cost_ms], ["a", "b"]).items() if ms)
        served[flow] += cost_ms
        gaps.append(abs(served["a"] / weight_a - served["b"] / weight_b))
    assert max(gaps) <= QUANTUM_MS / min(weight_a, weight_b) + 0.01
    assert len(costs) < 2 or all(served.values())


@given(st.data())
def test_another_one_goes_on_where_it_was_in_whatever_order_the_flows_come(data: st.DataObject) -> None:
    time: VirtualTime[str] = VirtualTime(max_lag_ms=1_000.0)
    for flow, is_there, cost_ms in data.draw(
        st.lists(st.tuples(flows, st.booleans(), st.floats(1, QUANTUM_MS)))
    ):
        if is_there:
            time.activate(flow)
            time.charge(flow, cost_ms)
        else:
            time.deactivate(flow)
    after: VirtualTime[str] = VirtualTime(max_lag_ms=1_000.0)
    after.resume(time.leads())
    active = sorted(time.active)
    for flow in data.draw(st.permutations(active)):
        after.activate(flow)
    after.resumed()
    assert after.active == time.active
    if active:  # and who comes anew starts where it would have
        everybody = [*"abcde", "newcomer"]
        base, base_after = time.of(active[0]), after.of(active[0])
        assert [time.of(f) - base for f in everybody] == [after.of(f) - base_after for f in everybody]


@given(st.data())
def test_the_bound_holds_from_wherever_the_flows_come(data: st.DataObject) -> None:
    """Given any past of comings, goings and service, two flows that are backlogged from now on differ by no
    more than two quanta and what a flow may lag."""
    lag_ms = 1_000.0
    time: VirtualTime[str] = VirtualTime(max_lag_ms=lag_ms)
    for flow, action, cost_ms in data.draw(
        st.lists(st.tuples(flows, st.sampled_from(["come", "go", "serve"]), st.floats(1, QUANTUM_MS)))
    ):
        if action == "come":
            time.activate(flow)
        elif action == "go":
            time.deactivate(flow)
        elif flow in time.active:
            time.charge(flow, cost_ms)
    time.activate("a")
    time.activate("b")
    debt_ms = abs(time.of("a") - time.of("b")) / 1000
    assert debt_ms <= lag_ms
    served = serve(time, data.draw(quanta), ["a", "b"])
    assert abs(served["a"] - served["b"]) <= debt_ms + 2 * QUANTUM_MS


def test_weights_of_one_and_three_get_one_and_three_quarters() -> None:
    time: VirtualTime[str] = VirtualTime()
    time.activate("one", 1)
    time.activate("three", 3)
    served = serve(time, [7.0] * 4000, ["one", "three"])
    assert served["three"] / served["one"] == pytest.approx(3, rel=0.01)


def test_a_flow_that_was_away_gets_nothing_for_it() -> None:
    time: VirtualTime[str] = VirtualTime()
    time.activate("a")
    time.activate("b")
    time.deactivate("b")
    serve(time, [100.0] * 1000, ["a"])
    time.activate("b")
    served = serve(time, [100.0] * 100, ["a", "b"])
    assert abs(served["a"] - served["b"]) <= 200


def test_nor_does_one_that_comes_when_everybody_is_away() -> None:
    time: VirtualTime[str] = VirtualTime()
    time.activate("a")
    serve(time, [100.0] * 1000, ["a"])
    time.deactivate("a")
    time.activate("b")
    time.activate("a")
    served = serve(time, [100.0] * 100, ["a", "b"])
    assert abs(served["a"] - served["b"]) <= 200


def test_nor_does_one_that_stays_and_asks_for_little() -> None:
    time: VirtualTime[str] = VirtualTime(max_lag_ms=1_000)
    time.activate("busy")
    time.activate("trickle")
    for _ in range(1000):
        time.charge("busy", 100)
        time.charge("trickle", 1)
    time.activate("newcomer")
    assert time.of("busy") - time.of("trickle") <= 1_000_000
    served = serve(time, [100.0] * 100, ["busy", "newcomer"])
    assert served["newcomer"] - served["busy"] <= 1_200


def test_leaving_for_a_moment_does_not_pay_a_debt() -> None:
    time: VirtualTime[str] = VirtualTime()
    time.activate("a")
    time.activate("b")
    time.charge("a", 800)
    before = time.of("a")
    time.deactivate("a")
    time.activate("a")
    assert time.of("a") == before
    assert time.order(["a", "b"]) == ["b", "a"]


def test_idle_flows_are_forgotten_once_the_others_have_caught_up() -> None:
    time: VirtualTime[str] = VirtualTime()
    time.activate("steady")
    for number in range(10_000):
        guest = f"guest {number}"
        time.activate(guest)
        time.charge(guest, 5)
        time.charge("steady", 5)
        time.deactivate(guest)
    assert len(time) <= 3


def test_ties_are_decided_by_the_flow_and_times_are_whole_microseconds() -> None:
    time: VirtualTime[tuple[str, str]] = VirtualTime()
    pairs = [("interactive", "b"), ("batch", "z"), ("interactive", "a")]
    for pair in pairs:
        time.activate(pair)
    assert time.order(pairs) == sorted(pairs)
    time.charge(("batch", "z"), 0.1 + 0.2)
    assert time.of(("batch", "z")) == 300


@pytest.mark.parametrize("weight", [0, -1.0])
def test_a_weight_of_nothing_is_refused(weight: float) -> None:
    time: VirtualTime[str] = VirtualTime()
    with pytest.raises(ValueError, match="weight"):
        time.activate("a", weight)


# -- over share -------------------------------------------------------------------------------------------


def test_over_share_is_asking_for_more_than_ones_part() -> None:
    weights = {"a": 1.0, "b": 1.0, "c": 2.0, "idle": 5.0}
    assert over_share({"a": 3, "b": 2, "c": 5, "idle": 0}, weights, 10) == {"a"}
    assert over_share({"a": 3}, weights, 10) == frozenset()
    assert over_share({"a": 11}, weights, 10) == {"a"}


def test_a_part_is_never_smaller_than_the_least() -> None:
    wanted, weights = {"a": 1, "b": 2, "c": 30}, {"a": 1.0, "b": 1.0, "c": 2.0}
    assert over_share(wanted, weights, 2) == {"a", "b", "c"}
    assert over_share(wanted, weights, 2, least=1) == {"b", "c"}
    assert equal_parts(wanted, weights, 2, least=1) == {"a": 1, "b": 1, "c": 1}


@given(demands, weights, st.integers(1, 300), st.integers(0, 2))
def test_over_share_is_a_demand_above_the_equal_part(
    wanted: dict[str, int], weight: dict[str, float], capacity: int, least: int
) -> None:
    parts = equal_parts(wanted, weight, capacity, least=least)
    over = over_share(wanted, weight, capacity, least=least)
    assert parts.keys() == {flow for flow, demand in wanted.items() if demand}
    for flow, part in parts.items():
        assert flow in over or wanted[flow] <= part + 1e-6
        assert flow not in over or wanted[flow] >= part - 1e-6


@given(demands, weights, st.integers(1, 300), flows)
def test_a_completion_changes_only_its_own_flow_and_that_only_at_the_line(
    wanted: dict[str, int], weight: dict[str, float], capacity: int, ended: str
) -> None:
    if wanted.get(ended, 0) < 2:
        return
    before = over_share(wanted, weight, capacity)
    after = over_share(wanted | {ended: wanted[ended] - 1}, weight, capacity)
    total = sum(weight[flow] for flow, demand in wanted.items() if demand)
    equal = capacity * weight[ended] / total
    assert before - after <= {ended}
    assert not after - before
    assert ended in after or ended not in before or wanted[ended] - 1 <= equal + 1e-6


@given(demands, weights, st.integers(1, 300))
def test_flows_within_their_share_fit_together(
    wanted: dict[str, int], weight: dict[str, float], capacity: int
) -> None:
    over = over_share(wanted, weight, capacity)
    assert sum(demand for flow, demand in wanted.items() if flow not in over) <= capacity + 1e-6
    assert bool(over) or sum(wanted.values()) <= capacity


# -- water filling ----------------------------------------------------------------------------------------


@given(demands, weights, st.integers(0, 500))
def test_water_filling_leaves_nothing_over_and_gives_nobody_more_than_wanted(
    wanted: dict[str, int], weight: dict[str, float], capacity: int
) -> None:
    parts = water_filling(wanted, weight, capacity)
    assert parts.keys() == wanted.keys()
    assert all(0 <= parts[flow] <= wanted[flow] for flow in wanted)
    assert sum(parts.values()) == pytest.approx(min(capacity, sum(wanted.values())), abs=1e-6)


@given(demands, weights, st.integers(1, 500))
def test_water_filling_is_max_min(wanted: dict[str, int], weight: dict[str, float], capacity: int) -> None:
    """Who gets less than it wants stands no lower, per weight, than anybody else: nothing can be moved."""
    parts = water_filling(wanted, weight, capacity)
    levels = {flow: part / weight[flow] for flow, part in parts.items()}
    for flow, demand in wanted.items():
        if parts[flow] < demand - 1e-6:
            assert levels[flow] >= max(levels.values()) - 1e-6


def test_water_filling_by_hand() -> None:
    wanted, weight = {"a": 10, "b": 100, "c": 100}, {"a": 1.0, "b": 1.0, "c": 3.0}
    parts = water_filling(wanted, weight, 90)
    assert parts == pytest.approx({"a": 10, "b": float(Fraction(80, 4)), "c": 60})
