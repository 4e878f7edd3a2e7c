"""Workloads: the same seed gives the same requests, at the rates and lengths that a scenario asks for."""

import tomllib
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from random import Random
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsim.arrival import PREFIX_TOKENS, Arrival
from fleetsim.lengths import Lognormal, draw
from fleetsim.rates import Bursts, Daily, Doubling, FlashCrowd, State, arrival_times
from fleetsim.workloads import ID_SPACE, WorkloadError, workload_of

CHAT = {"kind": "stream", "name": "chat", "rate": 50.0, "end_s": 20.0, "tenants": 10}
NOISE = {
    "kind": "burst",
    "name": "noisy",
    "noise": True,
    "at_s": 5.0,
    "requests": 100,
    "prompts": 500,
    "answers": 2000,
}


def arrivals(*tables: Mapping[str, object], seed: int = 7) -> list[Arrival]:
    return list(workload_of({"workload": list(tables)}).arrivals(seed))


def in_window(times: list[int], start_s: float, end_s: float) -> int:
    return sum(start_s * 1e6 <= at_us < end_s * 1e6 for at_us in times)


rates = st.one_of(
    st.floats(0.1, 200),
    st.builds(
        Daily, least_per_s=st.floats(0.1, 20), most_per_s=st.floats(20, 200), period_s=st.floats(1, 500)
    ),
    st.builds(Doubling, before_per_s=st.floats(0.1, 50), at_s=st.floats(0, 20), within_s=st.floats(1, 60)),
    st.builds(FlashCrowd, before_per_s=st.floats(0.1, 20), at_s=st.floats(0, 20), times=st.floats(1.1, 10)),
    st.builds(
        Bursts,
        states=st.lists(
            st.builds(State, per_s=st.floats(0, 200), mean_s=st.floats(0.5, 20)), min_size=2, max_size=4
        ).map(tuple),
    ),
)


@settings(max_examples=60, deadline=None)
@given(rate=rates, start_s=st.floats(0, 10), length_s=st.floats(0.5, 20), seed=st.integers(0, 2**32))
def test_times_are_in_order_within_their_bounds_and_decided_by_the_seed(rate, start_s, length_s, seed):
    times = list(arrival_times(rate, Random(seed), start_s, start_s + length_s))
    assert times == list(arrival_times(rate, Random(seed), start_s, start_s + length_s))
    assert all(earlier <= later for earlier, later in pairwise(times))
    assert all(start_s * 1e6 - 1 <= at_us <= (start_s + length_s) * 1e6 + 1 for at_us in times)


def test_poisson_has_its_rate_and_the_spread_of_one():
    counts = [
        in_window(times, s, s + 1)
        for times in [list(arrival_times(100.0, Random(3), 0, 400))]
        for s in range(400)
    ]
    assert mean(counts) == pytest.approx(100, rel=0.03)
    variance = mean((count - mean(counts)) ** 2 for count in counts)
    assert variance == pytest.approx(100, rel=0.25)


def test_a_day_is_low_at_one_end_and_high_at_the_other():
    day = Daily(least_per_s=10, most_per_s=90, period_s=1000, peak_s=500)
    times = list(arrival_times(day, Random(1), 0, 1000))
    assert len(times) == pytest.approx(50 * 1000, rel=0.03)
    assert in_window(times, 450, 550) == pytest.approx(90 * 100, rel=0.06)
    assert in_window(times, 0, 50) + in_window(times, 950, 1000) == pytest.approx(10 * 100, rel=0.2)


def test_a_doubling_is_steady_before_and_twice_as_much_after():
    times = list(arrival_times(Doubling(before_per_s=40, at_s=100, within_s=240), Random(2), 0, 500))
    assert in_window(times, 0, 100) == pytest.approx(40 * 100, rel=0.06)
    assert in_window(times, 340, 500) == pytest.approx(80 * 160, rel=0.05)
    assert Doubling(before_per_s=40, at_s=100, within_s=240).per_s(220) == pytest.approx(40 * 2**0.5)


def test_a_flash_crowd_comes_stays_and_goes():
    crowd = FlashCrowd(before_per_s=20, at_s=50, times=10, rise_s=10, hold_s=40, fall_s=20)
    assert [crowd.per_s(at_s) for at_s in (0, 50, 55, 60, 100)] == pytest.approx([20, 20, 110, 200, 200])
    assert crowd.per_s(120) == pytest.approx(20 + 180 / 2.718281828)
    times = list(arrival_times(crowd, Random(5), 0, 100))
    assert in_window(times, 60, 100) == pytest.approx(200 * 40, rel=0.05)


def test_bursts_have_their_mean_rate_and_more_spread_than_poisson():
    bursts = Bursts(
        states=(State(per_s=10, mean_s=20), State(per_s=100, mean_s=10), State(per_s=0, mean_s=5))
    )
    times = list(arrival_times(bursts, Random(4), 0, 20_000))
    assert len(times) / 20_000 == pytest.approx(bursts.mean_per_s, rel=0.08)
    counts = Counter(at_us // 1_000_000 for at_us in times)
    per_second = [counts[second] for second in range(20_000)]
    middle = mean(per_second)
    assert mean((count - middle) ** 2 for count in per_second) > 10 * middle


@settings(max_examples=40, deadline=None)
@given(
    middle=st.floats(1, 5000),
    cv=st.floats(0.1, 3),
    bounds=st.tuples(st.integers(1, 500), st.integers(1, 9000)).map(sorted),
    seed=st.integers(0, 2**32),
)
def test_lengths_stay_within_their_bounds(middle, cv, bounds, seed):
    length = Lognormal(mean=middle, cv=cv, least=bounds[0], most=bounds[1])
    rng = Random(seed)
    assert all(bounds[0] <= draw(length, rng) <= bounds[1] for _ in range(50))


def test_lengths_have_their_mean():
    rng = Random(8)
    assert mean(
        draw(Lognormal(mean=1000, cv=0.8, most=100_000), rng) for _ in range(40_000)
    ) == pytest.approx(1000, rel=0.02)


def test_a_workload_is_in_time_order_and_the_same_for_the_same_seed():
    first = arrivals(CHAT, NOISE)
    assert first == arrivals(CHAT, NOISE)
    assert first != arrivals(CHAT, NOISE, seed=8)
    assert all(earlier.at_us <= later.at_us for earlier, later in pairwise(first))


def test_a_quiet_run_has_the_same_requests_without_the_noise():
    workload = workload_of({"workload": [CHAT, NOISE]})
    assert workload.noisy() == {"noisy"}
    quiet = list(workload.arrivals(7, noise=False))
    assert quiet == [arrival for arrival in workload.arrivals(7) if arrival.tenant != "noisy"]
    assert quiet == arrivals(CHAT)


def test_requests_are_of_the_workloads_tenants_keys_and_limits():
    table = CHAT | {"klass": "batch", "max_tokens": 64, "deadline_ms": 5000}
    table["tenants"] = [{"name": "small", "keys": 3}, {"name": "large", "share": 3.0, "weight": 2.0}]
    found = arrivals(table)
    counts = Counter(arrival.tenant for arrival in found)
    assert counts["large"] / counts["small"] == pytest.approx(3, rel=0.25)
    assert {arrival.key for arrival in found} == {"small/0", "small/1", "small/2", "large/0"}
    assert {(arrival.tenant, arrival.weight) for arrival in found} == {("small", 1.0), ("large", 2.0)}
    assert {(a.klass, a.max_tokens, a.deadline_ms) for a in found} == {("batch", 64, 5000)}


def test_so_many_tenants_are_named_after_the_workload():
    assert set(workload_of({"workload": [CHAT]}).weights()) == {f"chat-{number}" for number in range(10)}
    assert set(workload_of({"workload": [CHAT | {"tenants": 1}]}).weights()) == {"chat"}


@settings(max_examples=30, deadline=None)
@given(requests=st.integers(1, 300), tenants=st.integers(1, 7), keys=st.integers(1, 40))
def test_a_burst_is_dealt_evenly_at_one_moment(requests, tenants, keys):
    names = [{"name": f"noisy-{number}", "keys": keys} for number in range(tenants)]
    found = arrivals(NOISE | {"requests": requests, "tenants": names})
    assert len(found) == requests
    assert {(a.at_us, a.prompt_tokens, a.output_tokens) for a in found} == {(5_000_000, 500, 2000)}
    for part in (Counter(a.tenant for a in found), Counter(a.key for a in found)):
        assert max(part.values()) - min(part.values()) <= 1
    assert len({a.key for a in found}) == min(requests, tenants * keys)


def test_system_prompts_are_shared_within_a_tenant_only():
    sharing = {"kind": "system_prompts", "share": 0.5, "part": 0.8}
    found = arrivals(CHAT | {"sharing": sharing, "end_s": 60.0})
    shared = sum(len(arrival.prefix) for arrival in found) * PREFIX_TOKENS
    assert shared / sum(arrival.prompt_tokens for arrival in found) == pytest.approx(0.4, abs=0.05)
    longest: dict[str, tuple[int, ...]] = {}
    for arrival in found:
        longest[arrival.tenant] = max(longest.get(arrival.tenant, ()), arrival.prefix, key=len)
    assert all(arrival.prefix == longest[arrival.tenant][: len(arrival.prefix)] for arrival in found)
    assert len({block for prefix in longest.values() for block in prefix}) == sum(map(len, longest.values()))


def test_two_workloads_never_share_a_prefix():
    sharing = {"kind": "conversations", "follow_up": 0.5}
    found = arrivals(CHAT | {"sharing": sharing}, CHAT | {"name": "other", "sharing": sharing})
    spaces = {(a.tenant.split("-")[0], block // ID_SPACE) for a in found for block in a.prefix}
    assert spaces == {("chat", 0), ("other", 1)}


def test_a_scenario_file_says_it_in_words():
    config = tomllib.loads(
        """
        title = "other fields are none of ours"

        [[workload]]
        kind = "stream"
        name = "chat"
        rate = { kind = "flash_crowd", before_per_s = 20, at_s = 10, times = 5 }
        end_s = 30
        tenants = [{ name = "acme", weight = 3 }, { name = "initech", share = 0.5 }]
        prompts = 1000
        sharing = { kind = "conversations", follow_up = 0.6, system = { mean = 900, cv = 0.5 } }
        """
    )
    workload = workload_of(config)
    assert workload.weights() == {"acme": 3.0, "initech": 1.0}
    assert len(list(workload.arrivals(1))) > 20 * 30


@pytest.mark.parametrize(
    ("tables", "field"),
    [
        ([], "`workload`"),
        ([CHAT | {"rate": -1}], "`workload[0].rate`"),
        ([CHAT, NOISE | {"requests": 0}], "`workload[1].requests`"),
        ([CHAT | {"kind": "steam"}], "`workload[0].kind`"),
        ([CHAT | {"rats": 1}], "`rats`"),
        ([{"kind": "stream", "name": "chat", "end_s": 1}], "`rate`"),
        ([CHAT | {"name": "no spaces"}], "`workload[0].name`"),
        ([CHAT | {"klass": "urgent"}], "`workload[0].klass`"),
        ([CHAT | {"tenants": []}], "`workload[0].tenants`"),
        ([CHAT | {"prompts": {"mean": 9, "cv": 1, "least": 9, "most": 8}}], "`workload[0].prompts`"),
        ([CHAT | {"rate": {"kind": "daily", "least_per_s": 2, "most_per_s": 1}}], "`workload[0].rate`"),
        ([CHAT | {"rate": {"kind": "bursts", "states": []}}], "`workload[0].rate.states`"),
        ([CHAT, CHAT], "`workload[1].name`"),
        ([CHAT, NOISE | {"tenants": [{"name": "chat-0"}]}], "`workload[1].tenants`"),
        ([NOISE | {"tenants": [{"name": "a"}, {"name": "a", "weight": 3.0}]}], "`workload[0].tenants`"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(tables, field):
    with pytest.raises(WorkloadError) as refused:
        workload_of({"workload": tables})
    assert field in str(refused.value)
    assert refused.value.code == "invalid_workload"
