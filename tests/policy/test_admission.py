"""Who would be late, or is one too many, is refused at once, with an honest time to return."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.admission import BYTES_PER_TOKEN, Admission, Drain, wait_ms
from policy.fair_queue import FairQueue
from policy.flow import INTERACTIVE, Flow
from policy.queue_settings import QueueSettings
from policy.retry_bookings import MOST_BOOKINGS
from policy.waiting import Refusal, Waiting
from tests.policy.queue_fleet import waiting_make

DRAIN = Drain(2.0)  # machine seconds a second


class Class:
    """A fair queue with an admission in front; every request is a tenth of a second of work."""

    def __init__(self, **settings: float) -> None:
        self.queue = FairQueue(ageing=0.5, ageing_most_ms=5000, flipped=lambda flow, is_over: None, now_ms=0)
        self.queue.divide(100)
        self.admission = Admission(QueueSettings(**settings), Random(1))  # type: ignore[arg-type]
        self.number = 0

    def waiting(self, tenant: str = "a", **fields: object) -> Waiting:
        self.number += 1
        waiting = waiting_make(self.number, tenant, **fields)  # type: ignore[arg-type]
        waiting.sequence, waiting.work_us = self.number, 100_000
        return waiting

    def fill(self, count: int, tenant: str = "a", **fields: object) -> None:
        for _ in range(count):
            self.queue.push(self.waiting(tenant, **fields))

    def late(
        self,
        waiting: Waiting,
        *,
        prefill_ms: float = 10,
        now_ms: float = 0,
        drain: Drain = DRAIN,
        is_booked: bool = False,
    ) -> Refusal | None:
        return self.admission.late(self.queue, waiting, prefill_ms, drain, now_ms, is_booked=is_booked)

    def full(self, waiting: Waiting, drain: Drain = DRAIN, *, is_booked: bool = False) -> Refusal | None:
        return self.admission.full(self.queue, waiting, drain, 0, is_booked=is_booked)


def wait(case: Class, tenant: str, weight: float = 1.0, drain: Drain = DRAIN) -> float:
    state = case.queue.flows.get(Flow(tenant, INTERACTIVE))
    return wait_ms(case.queue, state, weight, state.queued_us if state else 0, drain)


def test_a_lone_flow_waits_for_its_own_backlog_at_the_whole_rate() -> None:
    case = Class()
    case.fill(40)
    assert wait(case, "a") == pytest.approx(2_000)
    assert wait(case, "newcomer") == 0


def test_backlogged_flows_share_the_rate_by_weight() -> None:
    case = Class()
    case.fill(30, "a", weight=1.0)
    case.fill(30, "b", weight=3.0)
    assert wait(case, "a") == pytest.approx(6_000)
    assert wait(case, "b", 3.0) == pytest.approx(2_000)


def test_what_flows_without_backlog_ask_for_is_not_there_for_others_but_never_more_than_their_part() -> None:
    case = Class()
    case.fill(10, "a")
    light = case.waiting("b")
    case.queue.push(light)
    case.queue.start(light)
    case.queue.light_rate = 0.5
    assert wait(case, "a") == pytest.approx(1_000 / 1.5)
    case.queue.light_rate = 50
    assert wait(case, "a") == pytest.approx(1_000)
    state = case.queue.flows[light.flow]
    state.arrival_rate = 50  # its own is not what others ask for
    assert wait_ms(case.queue, state, 1.0, 100_000, DRAIN) == pytest.approx(100)


def test_at_its_guaranteed_rate_a_flow_has_its_part_and_no_more() -> None:
    case = Class()
    case.fill(10, "a")
    quiet = case.waiting("b")
    case.queue.push(quiet)
    case.queue.start(quiet)
    assert wait(case, "a") == pytest.approx(500)
    assert wait(case, "a", drain=Drain(2.0, is_guaranteed_only=True)) == pytest.approx(1_000)


def test_it_is_refused_when_wait_and_prompt_exceed_nine_tenths_of_the_time_left() -> None:
    case = Class()
    case.fill(17)  # 850 ms
    assert case.late(case.waiting(deadline_ms=1000), prefill_ms=50) is None
    refusal = case.late(case.waiting(deadline_ms=1000), prefill_ms=51)
    assert refusal is not None
    assert (refusal.code, refusal.name, refusal.used, refusal.limit) == (
        "deadline_unmeetable",
        "wait_ms",
        901,
        900,
    )
    assert "901 ms" in refusal.message
    assert 1_000 <= refusal.retry_after_ms <= 1_200


def test_others_backlog_is_no_reason_to_refuse() -> None:
    case = Class()
    case.fill(10_000, "noisy")
    assert case.late(case.waiting("quiet", deadline_ms=1000)) is None
    assert case.late(case.waiting("noisy", deadline_ms=1000)) is not None


def test_what_it_is_expected_to_wait_is_noted() -> None:
    case = Class()
    case.fill(10)
    waiting = case.waiting(at_ms=0)
    assert case.late(waiting, now_ms=300) is None
    assert waiting.promised_ms == pytest.approx(800)


def test_a_prompt_that_alone_is_too_long_is_not_told_to_come_back() -> None:
    case = Class()
    refusal = case.late(case.waiting(deadline_ms=1000), prefill_ms=901)
    assert refusal is not None
    assert refusal.retry_after_ms == 0
    past = case.late(case.waiting(deadline_ms=-5), prefill_ms=1)
    assert past is not None
    assert (past.limit, past.retry_after_ms) == (0, 0)


def test_nobody_knows_the_rate_before_there_is_a_replica() -> None:
    case = Class()
    case.fill(1_000)
    assert case.late(case.waiting(deadline_ms=1000), drain=Drain(0.0)) is None


def test_everybody_who_is_refused_is_told_a_later_time_and_finds_its_place_then() -> None:
    case = Class()
    case.fill(20)  # one second
    told = []
    for prompt in range(100, 140):
        refusal = case.late(case.waiting(deadline_ms=1000, prompt=prompt))
        assert refusal is not None
        told.append(refusal.retry_after_ms)
    assert told[-1] > told[0]
    assert max(told) <= 1.2 * 4_000
    now_ms = float(told[0])
    booking = case.admission.bookings.find(case.waiting(prompt=100), now_ms)
    assert booking is not None
    case.queue.remove(next(iter(case.queue.flows[Flow("a", INTERACTIVE)].waiting)))
    returned = case.waiting(deadline_ms=1_090, at_ms=now_ms, prompt=100)
    fresh = case.waiting(deadline_ms=1_090, at_ms=now_ms, prompt=999)
    assert case.late(returned, now_ms=now_ms, is_booked=True) is None
    assert case.late(fresh, now_ms=now_ms) is not None


def test_places_that_are_kept_take_at_most_half_of_what_may_wait() -> None:
    case = Class()
    for _ in range(50):
        case.admission.bookings.book(case.waiting(), 0)
    assert case.late(case.waiting(deadline_ms=1000)) is None


def test_who_would_have_to_wait_for_more_than_a_minute_is_promised_nothing() -> None:
    case = Class()
    case.fill(1_300)
    refusal = case.late(case.waiting(deadline_ms=1000))
    assert refusal is not None
    assert refusal.retry_after_ms == 0
    assert len(case.admission.bookings) == 0


def test_who_comes_after_all_places_of_the_next_minute_are_taken_is_promised_nothing() -> None:
    # Given a flow at twice the rate it is served with, whose refused clients all come back
    case = Class(queue_least=1)
    case.fill(20)
    told = []
    for _ in range(2_000):
        refusal = case.late(case.waiting(deadline_ms=1000))
        assert refusal is not None
        told.append(refusal.retry_after_ms)
    # Then as many are told to come as have a place then, and nobody else
    booked = [ms for ms in told if ms]
    assert len(booked) == len(case.admission.bookings)
    assert told[-100:].count(0) > 0
    assert len(booked) * 0.1 <= 60 * DRAIN.rate


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9))
def test_times_to_return_are_between_a_second_and_a_minute_or_none(more_ms: float, least_ms: float) -> None:
    case = Class()
    waiting = case.waiting()
    told_ms = case.admission.told_ms(case.queue, waiting, more_ms, DRAIN, 0, least_ms=least_ms)
    assert told_ms == 0 or 1_000 <= told_ms <= 60_000
    assert told_ms == 0 or told_ms >= max(more_ms, least_ms)
    assert len(case.admission.bookings) == (told_ms > 0)


def test_a_place_that_cannot_be_booked_is_not_promised() -> None:
    case = Class()
    for _ in range(MOST_BOOKINGS):
        assert case.admission.bookings.book(case.waiting(), 1_000)
    assert case.admission.told_ms(case.queue, case.waiting(), -1e9, DRAIN, 0) == 0
    other = case.waiting("b")
    assert case.admission.told_ms(case.queue, other, 0, DRAIN, 0) > 0


# -- whole answers ----------------------------------------------------------------------------------------


def whole(case: Class, *, service_ms: float, within_ms: float) -> Waiting:
    waiting = case.waiting()
    waiting.service_ms, waiting.whole_by_ms = service_ms, within_ms
    return waiting


def test_who_waits_for_the_last_token_is_let_in_by_the_time_of_all_of_them() -> None:
    case = Class()
    case.fill(10)  # 500 ms
    assert case.late(whole(case, service_ms=400, within_ms=1000)) is None
    refusal = case.late(whole(case, service_ms=401, within_ms=1000))
    assert refusal is not None
    assert (refusal.code, refusal.name, refusal.used, refusal.limit) == (
        "deadline_unmeetable",
        "wait_ms",
        901,
        900,
    )
    assert "last token" in refusal.message
    assert refusal.retry_after_ms >= 1_000, "there is time enough when its turn comes at once"
    assert case.late(case.waiting(deadline_ms=1000)) is None, "a stream begins in time"


def test_an_answer_that_is_too_long_by_itself_is_not_told_to_come_back() -> None:
    case = Class()
    refusal = case.late(whole(case, service_ms=901, within_ms=1000))
    assert refusal is not None
    assert (refusal.retry_after_ms, len(case.admission.bookings)) == (0, 0)


def test_the_first_token_has_its_own_time_in_a_whole_answer_too() -> None:
    case = Class()
    waiting = whole(case, service_ms=950, within_ms=100_000)
    waiting.deadline_ms = 1_000
    refusal = case.late(waiting, prefill_ms=901)
    assert refusal is not None
    assert "first token" in refusal.message


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=60))
def test_expected_waits_only_grow_while_nothing_leaves(tenants: list[str]) -> None:
    case = Class()
    last: dict[str, float] = {}
    for tenant in tenants:
        waiting = case.waiting(tenant, deadline_ms=1e9)
        assert case.late(waiting) is None
        case.queue.push(waiting)
        assert waiting.promised_ms >= last.get(tenant, 0.0)
        last[tenant] = waiting.promised_ms


# -- what the class holds ---------------------------------------------------------------------------------


def test_the_queue_is_full_when_it_holds_what_leaves_within_the_deadline() -> None:
    case = Class(queue_least=1)
    case.fill(19)
    assert case.full(case.waiting(deadline_ms=1000)) is None
    case.fill(1)
    refusal = case.full(case.waiting(deadline_ms=1000))
    assert refusal is not None
    assert (refusal.code, refusal.name, refusal.used, refusal.limit) == (
        "queue_full",
        "queued_requests",
        20,
        20,
    )
    assert refusal.retry_after_ms >= 1_000
    assert case.full(case.waiting(deadline_ms=1e12)) is None


def test_a_flow_within_its_part_is_not_refused_because_others_filled_the_queue() -> None:
    case = Class(queue_least=1)
    case.fill(40, "noisy")
    assert case.full(case.waiting("quiet", deadline_ms=1000)) is None
    assert case.full(case.waiting("noisy", deadline_ms=1000)) is not None
    case.fill(10, "quiet")
    assert case.full(case.waiting("quiet", deadline_ms=1000)) is not None


def test_but_nothing_is_without_bound() -> None:
    case = Class(queue_least=1, queue_most=20)
    case.fill(40, "noisy", deadline_ms=1e9)
    refusal = case.full(case.waiting("quiet", deadline_ms=1e9))
    assert refusal is not None
    assert refusal.limit == 20


def test_without_a_replica_a_fixed_number_waits() -> None:
    case = Class(queue_unknown=5)
    case.fill(4)
    assert case.full(case.waiting(), Drain(0.0)) is None
    case.fill(1)
    refusal = case.full(case.waiting(), Drain(0.0))
    assert refusal is not None
    assert (refusal.limit, refusal.retry_after_ms) == (5, 0), "nobody knows when"


def test_who_was_told_to_come_back_is_let_into_a_full_queue_but_not_without_bound() -> None:
    case = Class(queue_least=1, queue_most=20, queue_bytes=20_000 * BYTES_PER_TOKEN)
    case.fill(20)
    assert case.full(case.waiting(deadline_ms=1000)) is not None
    assert case.full(case.waiting(deadline_ms=1000), is_booked=True) is None
    long = case.waiting(deadline_ms=1000, prompt=30_000)
    assert case.full(long) is not None
    assert case.full(long, is_booked=True) is None
    longer = case.waiting(deadline_ms=1000, prompt=50_000)
    assert case.full(longer, is_booked=True) is not None
    case.fill(20)
    assert case.full(case.waiting(deadline_ms=1000), is_booked=True) is not None


def test_prompts_are_bounded_in_bytes_by_the_same_rule() -> None:
    case = Class(queue_bytes=1000 * BYTES_PER_TOKEN)
    case.fill(2, "noisy", prompt=450)
    assert case.full(case.waiting("noisy", prompt=100)) is None
    refusal = case.full(case.waiting("noisy", prompt=101))
    assert refusal is not None
    assert (refusal.name, refusal.used, refusal.limit) == ("queued_bytes", 4004, 4000)
    assert case.full(case.waiting("quiet", prompt=500)) is None
    assert case.full(case.waiting("quiet", prompt=501)) is not None
    case.fill(3, "noisy", prompt=450)
    assert case.full(case.waiting("quiet", prompt=1)) is not None


@pytest.mark.parametrize(
    ("name", "value"), [("window_tokens", 0), ("queue_bytes", -1), ("over_part", 1.1), ("batch_part", 2)]
)
def test_settings_that_cannot_be_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        QueueSettings(**{name: value})  # type: ignore[arg-type]
