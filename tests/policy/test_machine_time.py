"""Machine time is charged once: what replicas report, however often they say it, and what was paid before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.batch_floor import CREDIT_MOST_US, DEBT_MOST_US, BatchFloor
from policy.drain_rate import FIRST_PART, LEAST, DrainRate
from policy.flow import Flow
from policy.machine_time import MachineTime
from policy.work import WorkEstimate
from tests.policy.queue_fleet import COST, waiting_make

A, B = Flow("a", "interactive"), Flow("b", "interactive")


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("pay"), st.integers(1, 500)), st.tuples(st.just("work"), st.integers(0, 500))
        )
    )
)
def test_what_is_charged_is_what_was_done_or_paid_before_and_not_done_yet(
    events: list[tuple[str, int]],
) -> None:
    time = MachineTime()
    time.prepay("r", A, 0)
    charged = paid = done = 0
    for what, amount_us in events:
        if what == "pay":
            time.prepay("r", A, amount_us)
            charged, paid = charged + amount_us, paid + amount_us
        else:
            done += amount_us
            charged += time.worked("r", A, done)
            assert time.worked("r", A, done) == 0
            assert done < 2 or time.worked("r", A, done - 1) == 0
        assert max(done, 0) <= charged <= done + paid
    assert charged + time.worked("r", A, done + paid) == done + paid


def test_what_a_replica_did_before_we_came_is_not_charged() -> None:
    time = MachineTime()
    assert time.worked("r", A, 9_000_000) == 0
    assert time.worked("r", A, 9_000_100) == 100


def test_a_replica_that_forgot_a_flow_says_zero_and_counts_anew() -> None:
    time = MachineTime()
    time.prepay("r", A, 0)
    assert time.worked("r", A, 500) == 500
    assert time.worked("r", A, 0) == 0
    assert time.worked("r", A, 30) == 30


def test_what_was_not_done_is_given_back() -> None:
    time = MachineTime()
    time.prepay("r", A, 100)
    assert time.worked("r", A, 30) == 0
    assert time.refund("r", A, 100) == 70
    assert time.refund("r", A, 100) == 0
    assert time.refund("r", B, 100) == 0
    assert time.refund("unknown", A, 100) == 0
    assert time.worked("r", A, 40) == 10


def test_replicas_are_apart_and_one_that_is_gone_is_forgotten() -> None:
    time = MachineTime()
    time.prepay("r", A, 100)
    time.prepay("s", A, 100)
    assert time.worked("r", A, 150) == 50
    time.gone("r")
    time.gone("r")
    assert len(time) == 1
    assert time.worked("s", A, 150) == 50


def test_of_many_flows_the_one_that_was_sent_nothing_for_longest_is_forgotten_and_never_charged_twice() -> (
    None
):
    time = MachineTime(most_flows=2)
    c = Flow("c", "interactive")
    time.prepay("r", A, 0)
    assert time.worked("r", A, 1000) == 1000
    time.prepay("r", B, 0)
    time.prepay("r", A, 0)
    time.prepay("r", c, 0)  # b is forgotten
    assert len(time) == 2
    assert time.worked("r", A, 1100) == 100
    time.prepay("r", B, 50)  # a total of b's would be its whole past
    assert time.worked("r", B, 5000) == 0
    assert time.worked("r", B, 5060) == 10
    assert len(time) == 2


# -- the batch floor --------------------------------------------------------------------------------------


def test_batch_is_due_when_all_work_has_earned_it_a_quantum_and_until_it_is_spent() -> None:
    floor = BatchFloor(0.1, quantum_us=1_000)
    floor.worked(9_000, 1, is_batch=False, is_wanted=True)
    assert not floor.is_due
    floor.worked(1_000, 1, is_batch=False, is_wanted=True)
    assert floor.is_due
    floor.worked(1_000, 1, is_batch=True, is_wanted=True)
    assert floor.is_due
    floor.worked(1_000, 1, is_batch=True, is_wanted=True)
    assert not floor.is_due


def test_nothing_is_earned_while_nobody_wants_it_and_credit_and_debt_are_bounded() -> None:
    floor = BatchFloor(0.1)
    floor.worked(1e12, 1, is_batch=False, is_wanted=False)
    assert floor.credit_us == 0
    floor.worked(1e12, 3, is_batch=False, is_wanted=True)
    assert floor.credit_us == 3 * CREDIT_MOST_US
    floor.worked(1e12, 3, is_batch=True, is_wanted=True)
    assert floor.credit_us == -3 * DEBT_MOST_US
    floor.worked(1e12, 0, is_batch=True, is_wanted=True)
    assert floor.credit_us == -DEBT_MOST_US


# -- the drain rate ---------------------------------------------------------------------------------------


def run_for(drain: DrainRate, seconds: int, rate: float, *, dry: bool = False, bounded: bool = True) -> None:
    start_ms = drain.since_ms
    for step in range(1, seconds * 4 + 1):
        drain.done(round(250_000 * rate))
        if dry:
            drain.ran_dry()
        drain.tick(start_ms + 250 * step, 2, is_bounded=bounded)


def test_the_rate_follows_what_leaves_a_queue_that_has_something() -> None:
    drain = DrainRate(0)
    assert drain.per_replica == FIRST_PART
    run_for(drain, 30, rate=1.0)
    assert drain.per_replica == pytest.approx(0.5, rel=0.01)


def test_an_idle_fleet_says_nothing_unless_it_does_more() -> None:
    drain = DrainRate(0)
    run_for(drain, 30, rate=0.1, dry=True)
    assert drain.per_replica == FIRST_PART
    run_for(drain, 30, rate=1.9, dry=True)
    assert drain.per_replica == pytest.approx(0.95, rel=0.01)


def test_no_replica_does_more_than_a_second_in_a_second_nor_nothing() -> None:
    drain = DrainRate(0)
    run_for(drain, 60, rate=50)
    assert drain.per_replica == 1.0
    run_for(drain, 60, rate=0)
    assert drain.per_replica == 0.25
    run_for(drain, 60, rate=50, bounded=False)
    assert drain.per_replica == pytest.approx(25, rel=0.01)
    run_for(drain, 600, rate=0, bounded=False)
    assert drain.per_replica == LEAST


def test_without_replicas_or_without_time_nothing_is_learnt() -> None:
    drain = DrainRate(0)
    drain.done(10**9)
    drain.tick(0, 2, is_bounded=True)
    drain.tick(-5, 2, is_bounded=True)
    drain.tick(250, 0, is_bounded=True)
    assert drain.per_replica == FIRST_PART


# -- estimates --------------------------------------------------------------------------------------------


def test_work_without_costs_counts_one_for_a_prompt_token_and_two_for_output() -> None:
    estimate, waiting = WorkEstimate(), waiting_make(prompt=100, output=50, cached=40)
    assert estimate.prefill_ms(waiting) == pytest.approx(6)
    assert estimate.decode_ms(waiting) == pytest.approx(10)
    assert estimate.service_ms(waiting, 2) == pytest.approx(12 + 50 * 40)


def test_work_with_costs_is_what_steps_last() -> None:
    estimate, waiting = WorkEstimate(COST, 20), waiting_make(prompt=100, output=50, cached=40)
    assert estimate.prefill_ms(waiting) == pytest.approx(6)
    assert estimate.decode_ms(waiting) == pytest.approx(50 * (1 + 10 / 20))
    assert estimate.service_ms(waiting, 2) == pytest.approx(12 + 50 * (10 + 20))
    # beside fewer rows a step is shorter, and no step holds more than the limit
    assert estimate.service_ms(waiting, 2, 1) == pytest.approx(12 + 50 * (10 + 1))
    assert estimate.service_ms(waiting, 2, 99) == pytest.approx(12 + 50 * (10 + 20))
    both = waiting_make(prompt=100, output=50, cached=200, choices=2)
    assert both.new_tokens == 1
    assert estimate.service_ms(both, 1) == pytest.approx(0.1 + 25 * 30)
