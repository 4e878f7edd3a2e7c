"""A modelled replica: what steps cost, whose rows yield, what memory holds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsim.replica_model import SPEC
from policy.flow import Flow
from tests.fleetsim.replicas import SMALL, Bench


def test_a_lone_request_takes_what_its_steps_cost() -> None:
    # Given a prompt that fits into one step and three output tokens
    bench = Bench()
    number = bench.place(0, 1000, 3)
    bench.run()
    # Then its first token comes after base and prompt, the others a decode later each
    decodes = [14 + 0.132 + 30e-6 * context for context in (1001, 1002)]
    assert bench.steps == pytest.approx([14 + 100, *decodes], abs=0.001)
    assert bench.first_ms[number] == pytest.approx(114)
    assert bench.gaps_ms["tenant"] == pytest.approx(decodes, abs=0.001)
    assert bench.end_ms[number] == pytest.approx(114 + sum(decodes), abs=0.002)


def test_no_step_that_decodes_is_longer_than_the_target() -> None:
    bench = Bench()
    for number in range(60):
        bench.place(37 * number, 900, 200, tenant=f"tenant-{number % 5}")
    bench.run()
    assert len(bench.end_ms) == 60
    assert max(gap for gaps in bench.gaps_ms.values() for gap in gaps) <= 40


def test_a_tenant_beyond_its_share_is_paused_for_others_but_not_for_long() -> None:
    # Given a tenant with more long generations than fit into a step
    bench = Bench()
    for _ in range(200):
        bench.place(0, 100, 2000, tenant="noisy")
    bench.run(15_000)
    bench.gaps_ms.clear()
    # When others' prompts come all the time
    quiet = [bench.place(15_000 + 200 * n, 700, 20, tenant=f"quiet-{n % 4}") for n in range(25)]
    bench.run(21_000)
    # Then theirs wait for a few steps, and its rows run at least every quarter of a second
    waited = [bench.first_ms[number] - 15_000 - 200 * at for at, number in enumerate(quiet)]
    assert max(waited) < 500
    assert 80 < max(bench.gaps_ms["noisy"]) <= 250 + 3 * 40
    assert max(gap for tenant, gaps in bench.gaps_ms.items() if tenant != "noisy" for gap in gaps) <= 40


def test_without_pausing_they_wait_for_room() -> None:
    bench = Bench(pausing=False)
    for _ in range(200):
        bench.place(0, 100, 2000, tenant="noisy")
    bench.run(15_000)
    quiet = bench.place(15_000, 800, 20, tenant="quiet")
    bench.run(21_000)
    assert bench.first_ms.get(quiet, 1e9) - 15_000 > 450


def test_batch_yields_to_interactive_requests() -> None:
    bench = Bench()
    bench.place(0, 8000, 5, tenant="jobs", klass="batch")
    number = bench.place(1, 500, 5, tenant="chat")
    bench.run()
    assert bench.first_ms[number] < bench.first_ms[1]


def test_the_end_of_a_prompt_does_not_wait_behind_a_long_one_of_a_less_served_tenant() -> None:
    # Given a tenant that was served, whose prompt is nearly computed
    bench = Bench()
    for _ in range(20):
        bench.place(0, 50, 300, tenant="served")
    number = bench.place(2000, 400, 5, tenant="served")
    # When another's long prompt comes
    bench.place(2080, 8000, 5, tenant="new")
    bench.run()
    # Then what is left of the first one comes first
    assert bench.first_ms[number] - 2000 < 200


def test_a_prefix_that_was_computed_is_found_again() -> None:
    bench = Bench()
    first = bench.place(0, 1000, 5, prefix=tuple(range(15)))
    again = bench.place(2000, 1000, 5, prefix=(*range(10), 99))
    other = bench.place(4000, 1000, 5, prefix=(77, *range(1, 10)))
    bench.run()
    assert [bench.cached[number] for number in (first, again, other)] == [0, 10 * 64, 0]
    assert bench.first_ms[again] - 2000 == pytest.approx(14 + 0.1 * 360)


def test_the_whole_of_a_prompt_is_never_found() -> None:
    bench = Bench()
    bench.place(0, 640, 5, prefix=tuple(range(10)))
    again = bench.place(2000, 640, 5, prefix=tuple(range(10)))
    bench.run()
    assert bench.cached[again] == 9 * 64


def test_rows_that_outgrow_the_memory_give_way_and_lose_nothing() -> None:
    # Given rows that need three times the memory
    bench = Bench(SMALL)
    numbers = [bench.place(0, 500, 1500, tenant=f"tenant-{number % 3}") for number in range(30)]
    bench.run()
    assert bench.replica.memory.preemptions > 0
    # Then all end, with every token counted once
    assert sorted(bench.end_ms) == numbers
    assert bench.replica.output_tokens == 30 * 1500
    assert sum(map(len, bench.gaps_ms.values())) == 30 * 1499


def test_a_lost_replica_tells_what_it_had_emitted() -> None:
    bench = Bench()
    bench.place(0, 100, 50)
    bench.place(0, 100, 50, tenant="other")
    bench.run(500)
    emitted = bench.replica.emitted_alive
    assert {row.number: row.emitted for row in bench.replica.lost()} == emitted
    assert sum(emitted.values()) == bench.replica.output_tokens


REQUEST = st.tuples(
    st.integers(0, 3000),  # at, ms
    st.integers(1, 3000),  # prompt
    st.integers(1, 60),  # output
    st.sampled_from(["a", "b", "c"]),
    st.sampled_from(["interactive", "batch"]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(REQUEST, min_size=1, max_size=25), st.frozensets(st.sampled_from(["a", "b"])))
def test_whatever_comes_everything_ends_and_every_token_is_counted_once(
    requests: list[tuple[int, int, int, str, str]], over: frozenset[str]
) -> None:
    bench = Bench(SMALL)
    bench.replica.shares.over_set(frozenset(Flow(tenant, "interactive") for tenant in over))
    for at_ms, prompt, output, tenant, klass in requests:
        bench.place(at_ms, prompt, output, tenant=tenant, klass=klass)
    bench.run()
    assert len(bench.end_ms) == len(requests)
    assert bench.replica.output_tokens == sum(output for _, _, output, _, _ in requests)
    assert sum(map(len, bench.gaps_ms.values())) == sum(output - 1 for _, _, output, _, _ in requests)
    assert bench.replica.memory.pending_tokens == 0
    assert bench.replica.prefill_tokens >= sum(prompt for _, prompt, _, _, _ in requests)
    # Then machine time was charged for all but the bases of the steps
    charged_us = sum(bench.replica.shares.total_us.values())
    if not bench.replica.memory.preemptions:
        steps_us = bench.replica.busy_us - 14_000 * len(bench.steps)
        assert charged_us == pytest.approx(steps_us, rel=0.001, abs=2 * len(bench.steps))


def test_the_specifications_figures_are_consistent() -> None:
    """3.5 requests a second of 1,000 prompt and 300 output tokens: 0.875 of its time, steps of 29.5 ms."""
    cost = SPEC.cost
    rows_per_ms = 3.5 / 1000 * 300
    step_ms = 1 / (1 - rows_per_ms * (cost.row_ms + cost.context_ms * 1150) - 3.5 * cost.token_ms)
    assert step_ms * cost.base_ms == pytest.approx(29.5, rel=0.03)
    assert 3.5 * 300 / SPEC.output_tokens_per_s + 3500 / SPEC.prompt_tokens_per_s == pytest.approx(0.875)
