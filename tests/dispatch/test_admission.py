"""What the queue of a version is told of requests and workers, and what gateways hear of its refusals."""

import pytest

from dispatch.fleet import REFUSAL_PAUSE_MS
from gpuworker.wire.messages import Cancel, Ended, FlowWork, Placed, Refused, RowKey, Run, pack_ids
from policy.flow import BATCH_URGENT
from policy.prefix import BLOCK_TOKENS, ROUTER_STRIDE, prefix_next, prefix_root
from policy.queue_settings import QueueSettings
from tests.dispatch.peers import Inbox, hello, report
from tests.dispatch.scene import PREFIX_SECRET, Scene

SLOW = [10.0, 5.0, 10.0, 0.0, 0.0]  # milliseconds: a prompt token takes ten


def said(scene: Scene, name: str = "w", **fields: object) -> None:
    scene.dispatcher.report(name, report(9, **fields), scene.now)  # type: ignore[arg-type]


def ran(inbox: Inbox) -> list[int]:
    return [run.submit.sid for run in inbox.of(Run)]


def test_a_refusal_names_the_limit_and_says_when_to_come_back() -> None:
    scene = Scene(queue=QueueSettings(queue_least=1, queue_most=2))
    worker = scene.worker(max_rows=1)
    for sid in (1, 2, 3, 4):
        scene.submit(sid)
    (ended,) = scene.gateway.of(Ended)
    assert (ended.sid, ended.code, ended.reason) == (4, "queue_full", "")
    assert (ended.name, ended.used, ended.limit) == ("queued_requests", 2, 2)
    assert 1_000 <= ended.retry_after_ms <= 60_000
    state = scene.dispatcher.fleet_state(scene.now, 0)
    assert (state.submitted, state.refused) == (4, 1)
    assert [g.streams for g in state.gateways] == [3], "nothing is kept of it"
    assert ran(worker) == [1]


def test_without_a_replica_nobody_knows_when_to_come_back() -> None:
    scene = Scene(queue=QueueSettings(queue_least=1, queue_unknown=2))
    for sid in (1, 2, 3):
        scene.submit(sid)
    (ended,) = scene.gateway.of(Ended)
    assert (ended.sid, ended.code, ended.retry_after_ms) == (3, "queue_full", 0)


def test_who_waited_in_vain_has_a_place_when_it_comes_back_as_told() -> None:
    # Given a request that waits as long as its gateway lets it
    scene = Scene()
    worker = scene.worker(max_rows=1)
    said(scene, cost=SLOW, row_limit=1)
    scene.submit(1, max_tokens=4_000, tenant="other")
    scene.submit(2, prompt=20, start_ms=2_000)
    for _ in range(10):
        scene.silent_for(250)
        said(scene, cost=SLOW, row_limit=1)
    (ended,) = scene.gateway.of(Ended)
    assert (ended.sid, ended.code) == (2, "deadline_unmeetable")
    # Then its place is kept, not promised to everybody
    version = scene.dispatcher._versions.get("d1")
    assert version is not None
    assert 1_000 <= ended.retry_after_ms <= 60_000
    assert len(version.queue._entrance._admission.bookings) == 1
    assert ran(worker) == [1]


@pytest.mark.parametrize(("is_whole", "refused"), [(False, []), (True, [1])])
def test_who_waits_for_the_last_token_is_refused_where_that_would_be_late(
    scene: Scene, is_whole: bool, refused: list[int]
) -> None:
    worker = scene.worker()
    said(scene, cost=[10.0, 5.0, 0.2, 0.0, 0.0], row_limit=4)
    # Given 400 tokens, at 15 ms and more each, for a client that waits five seconds
    fields = {"max_tokens": 400, "expected_tokens": 400, "deadline_ms": 5_000}
    scene.submit(1, is_whole=is_whole, **fields)
    assert [ended.sid for ended in scene.gateway.of(Ended)] == refused
    assert {(e.code, e.name, e.retry_after_ms) for e in scene.gateway.of(Ended)} <= {
        ("deadline_unmeetable", "wait_ms", 0)
    }
    # and of 200, all of which are in time while nothing else runs
    scene.submit(2, is_whole=is_whole, **{**fields, "expected_tokens": 200})
    assert ran(worker)[-1] == 2


@pytest.mark.parametrize("how", ["ended", "cut", "cancelled"])
def test_what_a_row_did_not_produce_does_not_count_as_done(scene: Scene, how: str) -> None:
    """By how fast the fleet works after its end: an expectation of four seconds, over after a moment."""
    scene.worker(max_rows=1)
    scene.submit(1, max_tokens=100, expected_tokens=100)
    scene.submit(2)
    said(scene, prefilled=[RowKey("g", 1)])
    version = scene.dispatcher._versions.get("d1")
    assert version is not None
    scene.silent_for(100)
    before = version.queue._entrance._drain_rate._done_us
    if how == "cancelled":
        scene.dispatcher.cancel("g", Cancel(sid=1))
    cut = [RowKey("g", 1)] if how == "cut" else []
    scene.dispatcher.report("w", report(10, ended=[RowKey("g", 1)], cut=cut), scene.now)
    done_us = version.queue._entrance._drain_rate._done_us - before
    whole_us = 100 * 200
    assert done_us == whole_us if how == "ended" else 0 <= done_us < 0.05 * whole_us


def test_a_deadline_that_cannot_be_met_is_refused_at_once(scene: Scene) -> None:
    worker = scene.worker()
    said(scene, cost=SLOW)
    scene.submit(1, prompt=500, deadline_ms=5_000)
    (ended,) = scene.gateway.of(Ended)
    assert (ended.code, ended.name, ended.limit) == ("deadline_unmeetable", "wait_ms", 4_500)
    assert ended.used > 5_000
    assert ran(worker) == []


def test_a_prompt_that_is_mostly_cached_is_in_time(scene: Scene) -> None:
    ids = list(range(500))
    key, names = prefix_root(PREFIX_SECRET, "t", "d1", "", "float32", ""), []
    for number, first in enumerate(range(0, 496, BLOCK_TOKENS), start=1):
        key = prefix_next(key, ids[first : first + BLOCK_TOKENS])
        names += [key] if number % ROUTER_STRIDE == 0 else []
    worker = scene.worker()
    said(scene, cost=SLOW, cached=names)
    scene.submit(1, prompt_ids=pack_ids(ids), deadline_ms=5_000)
    assert ran(worker) == [1]


def test_output_is_expected_as_it_was_learned(scene: Scene) -> None:
    scene.worker(max_rows=1)
    said(scene, cost=[10.0, 5.0, 0.2, 0.0, 0.0], row_limit=1)
    for sid, expected in ((1, 10), (2, 10), (3, 10), (4, 0), (5, 10)):
        scene.submit(sid, max_tokens=4_000, expected_tokens=expected, deadline_ms=20_000)
    assert [ended.sid for ended in scene.gateway.of(Ended)] == [5], "behind one of which nothing is known"


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_a_weight_that_is_none_counts_as_one(scene: Scene, weight: float) -> None:
    scene.submit(1, weight=weight)
    worker = scene.worker()
    assert [run.submit.weight for run in worker.of(Run)] == [1.0]


def test_an_unknown_class_is_interactive(scene: Scene) -> None:
    scene.submit(1, klass="batch")
    scene.submit(2, klass="whatever")
    assert ran(scene.worker()) == [2, 1]


@pytest.mark.parametrize(("a_us", "b_us", "next_sid"), [(200_000, 900_000, 4), (900_000, 200_000, 3)])
def test_the_tenant_that_was_given_less_machine_time_is_next(
    scene: Scene, a_us: int, b_us: int, next_sid: int
) -> None:
    worker = scene.worker(max_rows=2)
    said(scene, cost=SLOW)
    for sid, tenant in ((1, "a"), (2, "b"), (3, "b"), (4, "a")):
        scene.submit(sid, tenant=tenant)
    said(scene, work=[FlowWork("a", "interactive", a_us), FlowWork("b", "interactive", b_us)], cost=SLOW)
    said(scene, ended=[RowKey("g", 1), RowKey("g", 2)], cost=SLOW)
    assert ran(worker)[:3] == [1, 2, next_sid]


def test_batch_that_would_be_late_runs_as_urgent(scene: Scene) -> None:
    worker = scene.worker(max_rows=1)
    scene.submit(1, max_tokens=900)
    scene.submit(2, klass="batch", weight=2.0, deadline_ms=4_000)
    for _ in range(14):
        scene.silent_for(250)
        said(scene)
    said(scene, ended=[RowKey("g", 1)])
    first, urgent = worker.of(Run)
    assert (first.submit.klass, first.submit.weight) == ("interactive", 1.0)
    assert (urgent.submit.klass, urgent.submit.weight) == (BATCH_URGENT, 0.5)
    refusal = Refused(row=RowKey("g", 2), code="capacity", message="")
    scene.dispatcher.refused("w", refusal, scene.now)
    queues = scene.dispatcher.fleet_state(scene.now, 0).queues
    assert {(q.klass, q.depth) for q in queues} == {("interactive", 0), ("batch", 1)}


# -- prompts that no replica can hold ----------------------------------------------------------------------


def too_long(scene: Scene) -> list[int]:
    ended = scene.gateway.of(Ended)
    assert {(e.code, e.reason, e.retry_after_ms) for e in ended} <= {("refused", "too_long", 0)}
    return [e.sid for e in ended]


def test_a_prompt_too_long_for_every_replica_is_refused_for_good(scene: Scene) -> None:
    scene.worker(max_tokens=100)
    scene.submit(1, prompt=100)
    assert too_long(scene) == [1]
    (ended,) = scene.gateway.of(Ended)
    assert (ended.used, ended.limit) == (101, 100)


def test_it_is_refused_too_when_the_first_replica_that_comes_cannot_hold_it(scene: Scene) -> None:
    scene.submit(1, prompt=100)
    scene.submit(2, prompt=99)
    worker = scene.worker(max_tokens=100)
    assert (too_long(scene), ran(worker)) == ([1], [2])


def test_it_is_refused_too_when_the_last_that_could_hold_it_goes(scene: Scene) -> None:
    scene.worker("small", max_tokens=100)
    scene.worker("big", max_tokens=1_000, max_rows=1)
    scene.submit(1, prompt=200)
    scene.submit(2, prompt=200)
    assert too_long(scene) == []
    scene.dispatcher.worker_lost("big", "gone")
    assert too_long(scene) == [2], "the first one ran there, and is lost"


# -- workers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["too_long", "unservable", "invalid_grammar"])
def test_the_reason_of_a_refusal_is_the_workers(scene: Scene, code: str) -> None:
    scene.worker()
    scene.submit(1)
    scene.dispatcher.refused("w", Refused(row=RowKey("g", 1), code=code, message="why"), scene.now)
    (ended,) = scene.gateway.of(Ended)
    assert (ended.code, ended.reason, ended.message) == ("refused", code, f"{code}: why")


def test_a_replica_that_said_it_is_full_is_asked_again_without_a_word_from_it(scene: Scene) -> None:
    worker = scene.worker()
    scene.submit(1)
    refusal = Refused(row=RowKey("g", 1), code="capacity", message="")
    scene.dispatcher.refused("w", refusal, scene.now)
    for _ in range(3):
        scene.silent_for(REFUSAL_PAUSE_MS / 3)
        scene.dispatcher.worker_heard("w", scene.now)
    scene.silent_for(100)
    assert ran(worker) == [1, 1]


def test_a_prompt_of_a_flow_over_its_share_does_not_keep_the_others_out(scene: Scene) -> None:
    worker = scene.worker(max_rows=8)
    scene.submit(100, tenant="quiet", prompt=20)
    for sid in range(12):
        scene.submit(sid, tenant="noisy", prompt=200)
    scene.silent_for(100)
    before = len(ran(worker))
    said(scene, pending=400, prefilled=[RowKey("g", 100)])
    assert len(ran(worker)) == before, "the window is full for who is over its share"
    scene.submit(101, tenant="quiet", prompt=250)
    scene.submit(102, tenant="quiet", prompt=20)
    assert ran(worker)[before:] == [101, 102]
    scene.submit(103, tenant="quiet", prompt=20)
    assert ran(worker)[before:] == [101, 102], "the window is full for the quiet one too"
    said(scene, pending=400, prefilled=[RowKey("g", 101)])
    assert ran(worker)[before:] == [101, 102, 103]


def test_the_refusal_of_a_forgotten_attempt_does_not_touch_the_second(scene: Scene) -> None:
    scene.worker("first", max_rows=1)
    scene.submit(1)
    for seq in range(40):
        scene.dispatcher.report("first", report(seq, free_blocks=9), scene.now)
        scene.silent_for(200, except_gateway=False)
    again = Inbox()
    scene.dispatcher.gateway_joined(hello("gateway", "gateway-0", "g"), again, scene.now)
    second = scene.worker("second")
    scene.submit(1)
    for code in ("capacity", "misrouted"):
        scene.dispatcher.refused("first", Refused(row=RowKey("g", 1), code=code, message=""), scene.now)
    assert (ran(second), again.of(Ended)) == ([1], [])
    assert [placed.worker for placed in again.of(Placed)] == ["second"]
    scene.dispatcher.report("second", report(9, ended=[RowKey("g", 1)]), scene.now)
    assert [g.streams for g in scene.dispatcher.fleet_state(scene.now, 0).gateways] == [0]


def test_a_replica_runs_no_more_rows_than_it_says_decode_in_time(scene: Scene) -> None:
    worker = scene.worker(max_rows=32)
    said(scene, cost=[10.0, 5.0, 0.2, 0.0, 0.0], row_limit=2)
    for sid in (1, 2, 3):
        scene.submit(sid)
    assert ran(worker) == [1, 2]


# -- views -------------------------------------------------------------------------------------------------


def test_the_flows_with_most_queued_work_are_shown(scene: Scene) -> None:
    for number in range(70):
        for sid in range(1 + (number == 7)):
            scene.submit(100 * number + sid, tenant=f"tenant-{number:02}")
    state = scene.dispatcher.fleet_state(scene.now, 0)
    assert len(state.flows) == 64
    assert (state.flows[0].tenant, state.flows[0].queued, state.flows[0].running) == ("tenant-07", 2, 0)
    assert {(flow.model, flow.klass) for flow in state.flows} == {("demo", "interactive")}
    assert {(q.klass, q.tenants) for q in state.queues} == {("interactive", 70), ("batch", 70)}
