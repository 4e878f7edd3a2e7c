"""Peers that come back, refuse, freeze or say nonsense, and a dispatcher that froze itself."""

import pytest
from msgspec.structs import replace

from dispatch.fleet import REFUSAL_PAUSE_MS
from dispatch.versions import FORGET_MS
from gpuworker.wire.messages import (
    HEARTBEAT_MS,
    Cancel,
    CancelRow,
    Capacity,
    Ended,
    GatewayGone,
    Placed,
    Refused,
    RowFlow,
    RowKey,
    Run,
    Shares,
    WorkerDown,
)
from tests.dispatch.peers import Inbox, hello, report, submit
from tests.dispatch.scene import Scene

ROW = RowKey("g", 1)


def refusal(code: str, row: RowKey = ROW) -> Refused:
    return Refused(row=row, code=code, message="")


def ran(inbox: Inbox) -> list[int]:
    return [run.submit.sid for run in inbox.of(Run)]


# -- a dispatcher that froze -------------------------------------------------------------------------------


def test_its_own_absence_does_not_count_as_its_peers_silence(scene: Scene) -> None:
    scene.worker()
    scene.submit(1)
    scene.now += 60_000
    scene.dispatcher.tick(scene.now)
    assert scene.gateway.of(WorkerDown) == []
    assert scene.gateway.is_open
    scene.silent_for(2_000)
    assert len(scene.gateway.of(WorkerDown)) == 1, "silence while it listens still counts"


def test_the_moment_a_lost_gateway_has_to_return_is_not_spent_while_nobody_listens(scene: Scene) -> None:
    scene.submit(1)
    scene.dispatcher.gateway_lost("g", scene.now)
    scene.now += 60_000
    scene.dispatcher.tick(scene.now)
    again = Inbox()
    scene.dispatcher.gateway_joined(hello("gateway", "gateway-0", "g"), again, scene.now)
    scene.worker()
    assert [p.sid for p in again.of(Placed)] == [1]


# -- a new dispatcher --------------------------------------------------------------------------------------

ROW_LIMIT = 4  # of the replica that the noise fills


def restarted(*rows: RowFlow, tells_flows: bool = True) -> tuple[Scene, Inbox]:
    """A dispatcher that has just begun, and a worker that runs these rows for the one before."""
    scene = Scene()
    running = [RowKey("g", number) for number in range(1, len(rows) + 1)]
    worker = scene.worker(max_rows=8, running=running, flows=list(rows) if tells_flows else [])
    scene.dispatcher.report("w", report(2, prefilled=running, row_limit=ROW_LIMIT), scene.now)
    return scene, worker


def beat(scene: Scene) -> None:
    scene.now += HEARTBEAT_MS
    scene.dispatcher.report("w", report(3, row_limit=ROW_LIMIT), scene.now)
    scene.dispatcher.tick(scene.now)


def running(scene: Scene) -> dict[str, int]:
    return {view.tenant: view.running for view in scene.dispatcher.fleet_state(scene.now, 0).flows}


def test_a_fresh_tenant_does_not_wait_for_noisy_rows_that_ran_before_the_restart() -> None:
    scene, worker = restarted(*[RowFlow("noisy", "interactive")] * 3, RowFlow("quiet", "interactive"))
    for sid in range(5, 9):
        scene.submit(sid, tenant="noisy")
    beat(scene)
    assert ran(worker) == []
    assert worker.of(Shares)[-1].over == [("noisy", "interactive")], "its rows yield in the replica's steps"
    scene.submit(10, tenant="fresh")
    assert ran(worker) == [10]


def test_noise_that_was_alone_before_the_restart_yields_within_a_heartbeat() -> None:
    scene, worker = restarted(*[RowFlow("noisy", "interactive")] * ROW_LIMIT)
    scene.submit(10, tenant="fresh")
    beat(scene)
    assert ran(worker) == [10]
    beat(scene)
    assert worker.of(Shares)[-1].over == [("noisy", "interactive")]


def test_rows_that_ran_before_the_restart_are_their_flows_until_they_end_or_their_worker_goes() -> None:
    scene, _ = restarted(
        RowFlow("a", "interactive"), RowFlow("a", "interactive"), RowFlow("b", "batch_urgent")
    )
    assert running(scene) == {"a": 2, "b": 1}
    ended = [RowKey("g", 1), RowKey("g", 3)]
    for seq in (3, 4):  # what is said twice changes nothing
        scene.dispatcher.report("w", report(seq, ended=ended), scene.now)
        assert running(scene) == {"a": 1}
    scene.dispatcher.worker_lost("w", "reset")
    assert running(scene) == {}


def test_a_row_that_waits_and_one_that_comes_too_late_are_not_counted_twice() -> None:
    scene = Scene()
    scene.submit(1, tenant="a")
    scene.worker(running=[ROW], flows=[RowFlow("a", "interactive")])
    assert running(scene) == {"a": 1}
    scene.silent_for(6_000)
    scene.worker("late", running=[RowKey("g", 2)], flows=[RowFlow("b", "interactive")])
    assert running(scene) == {}, "the first worker was silent for too long, the second is not believed"


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_nonsense_of_whose_a_row_is_does_no_harm(weight: float) -> None:
    scene, _ = restarted(RowFlow("a", "no class", weight))
    (view,) = scene.dispatcher.fleet_state(scene.now, 0).flows
    assert (view.tenant, view.klass, view.running) == ("a", "interactive", 1)
    beat(scene)


def test_a_worker_that_does_not_say_whose_its_rows_are_is_still_believed() -> None:
    scene, worker = restarted(*[RowFlow("noisy", "interactive")] * ROW_LIMIT, tells_flows=False)
    assert running(scene) == {}
    scene.submit(10, tenant="fresh")
    beat(scene)
    assert ran(worker) == [], "rows of nobody do not yield"
    scene.dispatcher.report("w", report(4, ended=[ROW], row_limit=ROW_LIMIT), scene.now)
    assert ran(worker) == [10]


def test_a_worker_that_says_of_some_rows_only_whose_they_are_is_refused(scene: Scene) -> None:
    greeting = hello("worker", "w", "w", running=[ROW, RowKey("g", 2)], flows=[RowFlow("a", "interactive")])
    problem = scene.dispatcher.worker_problem(greeting, scene.now)
    assert problem == ("bad_role", "a worker must say of every row whose it is")


# -- gateways ----------------------------------------------------------------------------------------------


def test_a_gateway_given_up_while_it_slept_is_disconnected_so_that_it_submits_again(scene: Scene) -> None:
    scene.submit(1)
    scene.silent_for(8_000, except_gateway=False)
    assert not scene.gateway.is_open
    again = Inbox()
    scene.dispatcher.gateway_joined(hello("gateway", "gateway-0", "g"), again, scene.now)
    scene.submit(1)
    scene.worker()
    assert [p.sid for p in again.of(Placed)] == [1]


def test_a_row_adopted_before_its_gateway_is_back_does_not_run_twice() -> None:
    scene = Scene()
    other = Inbox()
    running = [RowKey("late", 7)]
    worker, idle = scene.worker("w", running=running), scene.worker("idle")
    scene.dispatcher.gateway_joined(hello("gateway", "gateway-1", "late"), other, scene.now)
    scene.dispatcher.submit("late", submit(7), scene.now)
    assert [(p.sid, p.worker) for p in other.of(Placed)] == [(7, "w")]
    assert ran(worker) == ran(idle) == []
    scene.dispatcher.cancel("late", Cancel(sid=7))
    assert worker.of(CancelRow) == [CancelRow(row=running[0], reason="cancelled")]


def test_a_row_that_waits_is_taken_from_the_queue_when_a_worker_already_runs_it(scene: Scene) -> None:
    scene.submit(1)
    worker = scene.worker(running=[ROW])
    scene.dispatcher.report("w", report(2), scene.now)
    assert ran(worker) == []
    assert [p.worker for p in scene.gateway.of(Placed)] == ["w"]
    assert sum(q.depth for q in scene.dispatcher.fleet_state(scene.now, 0).queues) == 0


def test_the_late_end_of_a_forgotten_row_does_not_touch_its_second_attempt(scene: Scene) -> None:
    first = scene.worker("first", max_rows=1)
    scene.submit(1)
    for seq in range(40):
        scene.dispatcher.report("first", report(seq, free_blocks=9), scene.now)
        scene.silent_for(200, except_gateway=False)
    assert first.of(GatewayGone) == [GatewayGone(gateway="g")]
    again = Inbox()
    scene.dispatcher.gateway_joined(hello("gateway", "gateway-0", "g"), again, scene.now)
    second = scene.worker("second")
    scene.submit(1)
    assert ran(second) == [1]
    scene.dispatcher.report("first", report(99, ended=[ROW]), scene.now)
    scene.dispatcher.cancel("g", Cancel(sid=1))
    assert second.of(CancelRow) == [CancelRow(row=ROW, reason="cancelled")]


def test_an_adopted_row_whose_gateway_never_returns_is_ended(scene: Scene) -> None:
    worker = scene.worker(running=[RowKey("dead", 7)])
    assert [g.id for g in scene.dispatcher.fleet_state(scene.now, 0).gateways] == ["gateway-0"]
    for seq in range(40):
        scene.dispatcher.report("w", report(seq), scene.now)
        scene.silent_for(250)
    assert worker.of(GatewayGone) == [GatewayGone(gateway="dead")]


def test_a_row_running_in_two_places_is_cancelled_where_its_gateway_was_not_sent(scene: Scene) -> None:
    first = scene.worker("first")
    scene.submit(1)
    assert ran(first) == [1]
    second = scene.worker("second", running=[ROW])
    assert second.of(CancelRow) == [CancelRow(row=ROW, reason="moved")]
    scene.dispatcher.report("second", report(2, ended=[ROW]), scene.now)
    scene.dispatcher.cancel("g", Cancel(sid=1))
    assert first.of(CancelRow) == [CancelRow(row=ROW, reason="cancelled")], "still known where it runs"


@pytest.mark.parametrize("waited_ms", [-(2**63), 2**64 - 1])
def test_absurd_ages_are_bounded(scene: Scene, waited_ms: int) -> None:
    scene.submit(1, waited_ms=waited_ms, deadline_ms=2**64 - 1)
    (queue,) = [q for q in scene.dispatcher.fleet_state(scene.now, 0).queues if q.depth]
    assert 0 <= queue.oldest_ms <= 3_600_000
    scene.worker()
    assert 0 <= scene.gateway.of(Placed)[0].queue_ms <= 3_600_000


# -- workers -----------------------------------------------------------------------------------------------


def test_the_deadline_a_worker_is_given_is_what_is_left_of_it(scene: Scene) -> None:
    scene.submit(1, deadline_ms=10_000)
    scene.silent_for(9_000)
    (run,) = scene.worker().of(Run)
    assert run.submit.deadline_ms == 1_000


def test_a_silent_worker_is_disconnected_so_that_it_greets_again(scene: Scene) -> None:
    worker = scene.worker()
    scene.silent_for(2_000)
    assert not worker.is_open


def test_a_replica_that_says_it_is_full_does_not_block_the_others(scene: Scene) -> None:
    full, busy = scene.worker("a"), scene.worker("b", blocks=60)
    scene.dispatcher.report("b", report(2, free_blocks=30, pending=200), scene.now)
    scene.submit(1)
    assert ran(full) == [1], "it looks better than the busy one"
    scene.dispatcher.refused("a", refusal("capacity"), scene.now)
    assert (ran(full), ran(busy)) == ([1], [1])
    scene.submit(2)
    assert ran(busy) == [1, 2]
    scene.now += REFUSAL_PAUSE_MS
    scene.dispatcher.report("a", report(2), scene.now)
    scene.dispatcher.report("b", report(3, free_blocks=30), scene.now)
    scene.submit(3)
    assert ran(full) == [1, 3], "it is asked again after a while"


def test_a_cancel_that_crosses_a_refusal_is_not_forgotten(scene: Scene) -> None:
    worker = scene.worker()
    scene.submit(1)
    scene.dispatcher.cancel("g", Cancel(sid=1))
    scene.dispatcher.refused("w", refusal("capacity"), scene.now)
    assert [(e.sid, e.code) for e in scene.gateway.of(Ended)] == [(1, "cancelled")]
    scene.now += 2 * REFUSAL_PAUSE_MS
    scene.dispatcher.report("w", report(2), scene.now)
    assert ran(worker) == [1]


def test_a_refused_request_waits_again_and_can_be_cancelled_there(scene: Scene) -> None:
    scene.worker()
    scene.submit(1)
    scene.dispatcher.refused("w", refusal("capacity"), scene.now)
    scene.dispatcher.cancel("g", Cancel(sid=1))
    assert [(e.sid, e.code) for e in scene.gateway.of(Ended)] == [(1, "cancelled")]


def test_an_idle_replica_takes_a_prompt_that_nearly_fills_it(scene: Scene) -> None:
    worker = scene.worker(blocks=20, max_tokens=320)
    scene.submit(1, prompt=319)
    assert ran(worker) == [1]


def test_a_prompt_only_a_suspect_replica_can_hold_waits_for_it(scene: Scene) -> None:
    scene.worker("small", max_tokens=100)
    big = scene.worker("big", max_tokens=1_000)
    for _ in range(4):
        scene.silent_for(200)
        scene.dispatcher.report("small", report(2), scene.now)
    scene.submit(1, prompt=500)
    assert (ran(big), scene.gateway.of(Ended)) == ([], [])
    scene.dispatcher.report("big", report(2), scene.now)
    assert ran(big) == [1]


def test_a_connection_at_its_end_takes_no_request_with_it(scene: Scene) -> None:
    closing, other = scene.worker("a"), scene.worker("b", blocks=60)
    closing.is_open = False
    scene.submit(1)
    assert ran(other) == [1]
    assert [p.worker for p in scene.gateway.of(Placed)] == ["b"]


def test_an_expired_head_ends_at_once_and_batch_does_not_pass_it_by(scene: Scene) -> None:
    scene.submit(1, deadline_ms=100)
    scene.submit(2, klass="batch")
    scene.submit(3)
    scene.now += 150
    worker = scene.worker()
    assert [(e.sid, e.code) for e in scene.gateway.of(Ended)] == [(1, "deadline_exceeded")]
    assert ran(worker) == [3, 2]


def test_a_name_in_use_is_refused_while_its_owner_lives(scene: Scene) -> None:
    scene.worker("w")
    twin = replace(hello("worker", "w", "w"), incarnation="w'")
    problem = scene.dispatcher.worker_problem(twin, scene.now)
    assert problem is not None
    assert problem[0] == "duplicate_id"
    assert scene.dispatcher.worker_problem(hello("worker", "w", "w"), scene.now) is None, "itself, again"
    scene.silent_for(800)
    assert scene.dispatcher.worker_problem(twin, scene.now) is None


@pytest.mark.parametrize("field", ["blocks", "block_size", "max_tokens", "max_rows"])
@pytest.mark.parametrize("value", [0, -1])
def test_a_capacity_that_is_none_is_refused(scene: Scene, field: str, value: int) -> None:
    capacity = replace(Capacity(blocks=64, block_size=16, max_tokens=1_000, max_rows=8), **{field: value})
    problem = scene.dispatcher.worker_problem(
        replace(hello("worker", "w", "w"), capacity=capacity), scene.now
    )
    assert problem == ("bad_role", "a worker's capacity must be positive")


def test_rows_of_a_lost_worker_are_nobodys(scene: Scene) -> None:
    scene.worker()
    scene.submit(1)
    scene.dispatcher.worker_lost("w", "reset")
    assert [g.streams for g in scene.dispatcher.fleet_state(scene.now, 0).gateways] == [0]


def test_a_worker_whose_step_hangs_is_lost_and_its_requests_go_elsewhere(scene: Scene) -> None:
    # Given a request on a worker whose process is alive
    hanging = scene.worker()
    scene.submit(1)
    assert hanging.of(Run)
    # When it says that its step hangs
    scene.dispatcher.report("w", replace(report(2), hung=True), scene.now)
    # Then its connection is ended, and gateways hear of it; that is no crash
    assert not hanging.is_open
    (down,) = scene.gateway.of(WorkerDown)
    assert (down.incarnation, down.crashed) == ("w", False)
    # And when the gateway submits it again, another one runs it
    other = scene.worker("other")
    scene.submit(2, moves=1)
    assert [run.submit.sid for run in other.of(Run)] == [2]


def test_a_worker_that_closes_without_a_word_has_crashed(scene: Scene) -> None:
    scene.worker()
    scene.dispatcher.worker_lost("w", "reset")
    scene.worker("polite")
    scene.dispatcher.report("polite", report(2, draining=True), scene.now)
    scene.dispatcher.worker_lost("polite", "closed")
    assert [(down.incarnation, down.crashed) for down in scene.gateway.of(WorkerDown)] == [
        ("w", True),
        ("polite", False),
    ]


def test_the_time_a_model_may_be_without_a_replica_begins_anew(scene: Scene) -> None:
    scene.submit(1)
    scene.silent_for(20_000)
    scene.worker()
    scene.silent_for(250)
    scene.dispatcher.worker_lost("w", "reset")
    scene.submit(2)
    scene.silent_for(20_000)
    assert scene.gateway.of(Ended) == []
    scene.silent_for(11_000)
    assert [(e.sid, e.code) for e in scene.gateway.of(Ended)] == [(2, "no_replica")]


# -- memory ------------------------------------------------------------------------------------------------


def test_versions_nobody_serves_or_asks_for_are_forgotten(scene: Scene) -> None:
    for number in range(20):
        scene.submit(number, digest=f"d{number}")
    scene.worker(digest="served")
    for _ in range(int(FORGET_MS / 500) + 2):
        scene.dispatcher.report("w", report(2), scene.now)
        scene.silent_for(500)
    assert {q.model for q in scene.dispatcher.fleet_state(scene.now, 0).queues} == {"demo"}
    assert len(scene.dispatcher.fleet_state(scene.now, 0).queues) == 2
    assert len(scene.gateway.of(Ended)) == 20
