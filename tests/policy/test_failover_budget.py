"""What is computed again comes first only for a quarter of the machine time."""

from hypothesis import given
from hypothesis import strategies as st

from policy.failover_budget import BURST_MS, PART, FailoverBudget


def test_a_lost_replicas_requests_come_first_and_a_second_wave_does_not() -> None:
    budget = FailoverBudget(0)
    assert all(budget.take(10, 4, 0) for _ in range(30))
    while budget.take(100, 4, 0):
        pass
    assert not budget.take(1, 4, 0)
    # A quarter of four replicas' time is one replica's time
    assert budget.take(1, 4, 150)


def test_no_prompt_is_too_long_and_a_lone_replica_that_is_gone_counts() -> None:
    budget = FailoverBudget(0)
    assert budget.take(60_000, 0, 0)
    assert not budget.take(1, 0, 10_000)


def test_a_clock_that_jumps_back_gives_nothing_twice() -> None:
    budget = FailoverBudget(10_000)
    while budget.take(100, 1, 10_000):
        pass
    assert not budget.take(100, 1, 0)
    assert not budget.take(100, 1, 10_000)


times = st.tuples(st.floats(0, 5_000), st.floats(0, 3_000))


@given(st.lists(times, max_size=200), st.integers(1, 8))
def test_it_never_gives_more_than_its_part(steps: list[tuple[float, float]], replicas: int) -> None:
    budget, now_ms, given_ms, longest = FailoverBudget(0), 0.0, 0.0, 0.0
    for elapsed_ms, cost_ms in steps:
        now_ms += elapsed_ms
        if budget.take(cost_ms, replicas, now_ms):
            given_ms, longest = given_ms + cost_ms, max(longest, cost_ms)
        assert given_ms <= replicas * (PART * now_ms + BURST_MS) + longest + 1e-6
