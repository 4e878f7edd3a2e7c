"""What the reaper bills: never while the gateway may live, never twice, never more than was counted."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.presence import GONE_AFTER_S, STALE_AFTER_S, Presence
from billing.pricing import NOTHING, billable_tokens
from billing.reaper import WorkerUsageRow, reap_decide
from tests.billing.records import request_id, worker_row

GATEWAYS = ["g0", "g1"]
WORKERS = ["w0", "w1"]


def watched(present: list[str], *, until_s: float, start_s: float = 0.0) -> Presence:
    """A presence that saw `present` twice a second."""
    presence = Presence()
    for tick in range(int((until_s - start_s) * 2) + 1):
        presence.observe(present, start_s + tick / 2)
    return presence


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("stop", "completed"),
        ("length", "completed"),
        ("cancelled", "cancelled"),
        ("deadline", "deadline"),
        ("gateway_lost", "gateway_lost"),
        ("a reason of a later version", "gateway_lost"),
    ],
)
def test_final_count_of_a_dead_gateway_is_billed_by_the_workers_reason(reason: str, outcome: str) -> None:
    row = worker_row(reason=reason, output_tokens=77)
    gateways, workers = watched([], until_s=10), watched(["worker-inc"], until_s=10)
    [record] = reap_decide([row], frozenset(), gateways, workers, 10.0)
    assert (record.outcome, record.output_tokens, record.key_id) == (outcome, 77, None)
    assert record.request_id == str(row.request_id)


def test_our_own_failure_is_on_the_house_when_nobody_knows_what_was_delivered() -> None:
    row = worker_row(reason="error", output_tokens=77)
    [record] = reap_decide([row], frozenset(), watched([], until_s=10), Presence(), 10.0)
    assert (record.outcome, record.prompt_tokens, record.output_tokens) == ("error", 10, 0)
    assert billable_tokens(record) == NOTHING


def test_open_row_waits_for_its_worker_and_is_billed_when_that_is_gone() -> None:
    row, gateways = worker_row(), watched([], until_s=10)
    assert reap_decide([row], frozenset(), gateways, watched(["worker-inc"], until_s=10), 10.0) == []
    [record] = reap_decide([row], frozenset(), gateways, watched([], until_s=10), 10.0)
    assert (record.outcome, record.output_tokens) == ("gateway_lost", 64)


def test_nothing_before_the_gateway_was_absent_for_ten_seconds() -> None:
    row, gateways = worker_row(reason="stop"), Presence()
    gateways.observe(["gateway-inc"], 0.0)
    for tick in range(1, 20):
        gateways.observe([], tick / 2)
        assert reap_decide([row], frozenset(), gateways, Presence(), tick / 2) == []
    gateways.observe([], 10.0)
    assert len(reap_decide([row], frozenset(), gateways, Presence(), 10.0)) == 1


def test_a_lost_dispatcher_declares_nobody_dead() -> None:
    row = worker_row(reason="stop")
    gateways = watched([], until_s=20)
    assert reap_decide([row], frozenset(), gateways, Presence(), 20 + STALE_AFTER_S + 0.1) == []
    # Back after a gap: the ten seconds start anew, because the gateway may have been there meanwhile.
    gateways.observe([], 30.0)
    assert reap_decide([row], frozenset(), gateways, Presence(), 30.0) == []
    assert reap_decide([row], frozenset(), watched([], start_s=30, until_s=40), Presence(), 40.0)


def test_what_has_a_usage_event_is_left_alone() -> None:
    row = worker_row(reason="stop")
    gateways = watched([], until_s=10)
    assert reap_decide([row], {row.key}, gateways, Presence(), 10.0) == []


def test_a_row_given_twice_is_billed_once() -> None:
    row = worker_row(reason="stop")
    assert len(reap_decide([row, row], frozenset(), watched([], until_s=10), Presence(), 10.0)) == 1


rows_strategy = st.lists(
    st.builds(
        worker_row,
        number=st.integers(1, 6),
        attempt=st.integers(1, 2),
        gateway=st.sampled_from(GATEWAYS),
        worker_incarnation=st.sampled_from(WORKERS),
        output_tokens=st.integers(0, 500),
        reason=st.sampled_from(["", "stop", "length", "cancelled", "error"]),
    ),
    max_size=12,
)
observations = st.lists(
    st.tuples(
        st.sampled_from([0.5, 1.0, 2.0, 2.0, 2.5]),  # seconds since the one before
        st.sets(st.sampled_from(GATEWAYS)),
        st.sets(st.sampled_from(WORKERS)),
    ),
    min_size=6,
    max_size=20,
)
billed_keys = st.sets(st.tuples(st.builds(request_id, st.integers(1, 6)), st.integers(1, 2)))


@given(rows_strategy, observations, billed_keys, st.sampled_from([0.0, 0.5, 2.0, 2.5]))
def test_never_twice_never_while_the_gateway_may_live(
    rows: list[WorkerUsageRow],
    seen: list[tuple[float, set[str], set[str]]],
    billed: set[tuple[object, int]],
    later_s: float,
) -> None:
    gateways, workers, now_s = Presence(), Presence(), 0.0
    history: list[tuple[float, set[str], set[str]]] = []
    for gap_s, gateway_set, worker_set in seen:
        now_s += gap_s
        gateways.observe(gateway_set, now_s)
        workers.observe(worker_set, now_s)
        history.append((now_s, gateway_set, worker_set))
    now_s += later_s

    records = reap_decide(rows, billed, gateways, workers, now_s)  # type: ignore[arg-type]

    keys = [(record.request_id, record.attempt) for record in records]
    assert len(set(keys)) == len(keys)
    assert not set(keys) & {(str(number), attempt) for number, attempt in billed}
    by_count = {
        (
            str(row.request_id),
            row.attempt,
            0 if row.reason == "error" else row.output_tokens,
            row.gateway,
        ): row
        for row in rows
    }
    for record in records:
        row = by_count[(record.request_id, record.attempt, record.output_tokens, record.gateway)]
        assert absent_all_along(row.gateway, [(at, present) for at, present, _ in history], now_s)
        if all(
            other.reason == ""
            for other in rows
            if (str(other.request_id), other.attempt) == (record.request_id, record.attempt)
        ):
            assert absent_all_along(
                row.worker_incarnation, [(at, present) for at, _, present in history], now_s
            )


@given(observations, st.sampled_from([0.0, 0.5, 2.0, 2.5]))
def test_gone_means_absent_throughout_ten_watched_seconds(
    seen: list[tuple[float, set[str], set[str]]], later_s: float
) -> None:
    presence, now_s = Presence(), 0.0
    history: list[tuple[float, set[str]]] = []
    for gap_s, present, _ in seen:
        now_s += gap_s
        presence.observe(present, now_s)
        history.append((now_s, present))
    now_s += later_s
    for incarnation in GATEWAYS:
        assert presence.is_gone(incarnation, now_s) == absent_all_along(incarnation, history, now_s)


def absent_all_along(incarnation: str, history: list[tuple[float, set[str]]], now_s: float) -> bool:
    """The specification of `is_gone`, from the whole history: the last ten seconds were watched without a
    gap, and it was not there."""
    times = [at for at, _ in history] + [now_s]
    window_start = now_s - GONE_AFTER_S
    if times[0] > window_start:
        return False
    watched_from = max(at for at in times if at <= window_start)
    window = [at for at in times if at >= watched_from]
    no_gap = all(after - before <= STALE_AFTER_S for before, after in itertools.pairwise(window))
    return no_gap and not any(incarnation in present for at, present in history if at > window_start)
