"""How many requests at a time a server is given, found from its latency alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.gradient_limit import GradientLimit, GradientSettings

SETTINGS = GradientSettings(initial=10, most=100, window_ms=100, window_samples=5)


class Server:
    """Answers as fast as ever up to `holds` requests; beyond, they queue."""

    def __init__(self, limit: GradientLimit, holds: int) -> None:
        self.limit, self.holds, self.now_ms = limit, holds, 0.0

    def run(self, windows: int, *, demand: int = 1_000) -> int:
        for _ in range(windows):
            inflight = min(self.limit.limit, demand)
            latency_ms = 50.0 * max(1.0, inflight / self.holds)
            for _ in range(5):
                self.now_ms += 25.0
                self.limit.sample(self.now_ms, latency_ms, inflight)
        return self.limit.limit


def test_it_grows_while_latency_stays_and_stops_near_what_the_server_holds() -> None:
    limit = GradientLimit(SETTINGS)
    found = Server(limit, holds=30).run(60)
    assert 30 <= found <= 45


def test_it_shrinks_when_the_server_becomes_slower_and_grows_again() -> None:
    limit = GradientLimit(SETTINGS)
    server = Server(limit, holds=30)
    before = server.run(60)
    server.holds = 8
    during = server.run(20)
    server.holds = 30
    assert during < before * 0.6
    assert server.run(200) > during * 1.5


def test_a_slow_time_is_forgotten_so_that_the_next_one_shows() -> None:
    limit = GradientLimit(SETTINGS)
    moments = iter(range(0, 1_000_000, 25))

    def windows(count: int, latency_ms: float) -> int:
        for _ in range(count * 5):
            limit.sample(float(next(moments)), latency_ms, limit.limit)
        return limit.limit

    windows(15, 500.0)
    before = windows(30, 50.0)
    assert windows(10, 200.0) < before * 0.8


def test_idleness_says_nothing() -> None:
    limit = GradientLimit(SETTINGS)
    assert Server(limit, holds=30).run(50, demand=3) == 10


def test_a_refusal_takes_a_tenth_at_once() -> None:
    limit = GradientLimit(SETTINGS)
    limit.overloaded()
    assert limit.limit == 9


def test_fewer_samples_than_a_window_needs_change_nothing() -> None:
    limit = GradientLimit(SETTINGS)
    for at in range(4):
        limit.sample(at * 1_000.0, 5_000.0, 10)
    assert limit.limit == 10


def test_bounds_must_make_sense() -> None:
    with pytest.raises(ValueError, match="between 1"):
        GradientLimit(GradientSettings(least=5, most=4))


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 500), st.booleans()), max_size=200))
def test_the_limit_stays_in_its_bounds(samples: list[tuple[float, int, bool]]) -> None:
    limit = GradientLimit(SETTINGS)
    for at, (latency_ms, inflight, is_refused) in enumerate(samples):
        limit.overloaded() if is_refused else limit.sample(at * 30.0, latency_ms, inflight)
        assert 1 <= limit.limit <= 100
