"""Order, placement and endings decided by the dispatcher, on a manual clock."""

import msgspec

from dispatch.fleet import REFUSAL_PAUSE_MS
from gpuworker.wire.messages import (
    Cancel,
    CancelRow,
    Ended,
    GatewayGone,
    Placed,
    Refused,
    RowKey,
    Run,
    WorkerDown,
    WorkerUp,
)
from policy.ids import uuid7
from policy.queue_settings import QueueSettings
from tests.dispatch.peers import Inbox, hello, report
from tests.dispatch.scene import Scene


def test_a_request_runs_on_the_replica_with_its_weights(scene: Scene) -> None:
    other, right = scene.worker("other", digest="d2"), scene.worker("right", digest="d1")
    scene.submit(1, digest="d1")
    assert [run.submit.sid for run in right.of(Run)] == [1]
    assert other.of(Run) == []
    assert scene.gateway.of(Placed)[0].worker == "right"


def test_without_a_replica_requests_wait_then_end(scene: Scene) -> None:
    scene.submit(1)
    scene.silent_for(100)
    scene.silent_for(29_000)
    assert scene.gateway.of(Ended) == []
    scene.silent_for(2_000)
    assert [(e.sid, e.code) for e in scene.gateway.of(Ended)] == [(1, "no_replica")]


def test_waiting_requests_start_in_order_of_arrival_also_when_resubmitted(scene: Scene) -> None:
    scene.submit(1)
    scene.submit(2)
    scene.submit(3, waited_ms=500)
    worker = scene.worker()
    assert [run.submit.sid for run in worker.of(Run)] == [3, 1, 2]


def test_interactive_goes_before_batch(scene: Scene) -> None:
    scene.submit(1, klass="batch")
    scene.submit(2)
    assert [run.submit.sid for run in scene.worker().of(Run)] == [2, 1]


def test_placement_is_late_until_the_prompts_before_are_computed(scene: Scene) -> None:
    worker = scene.worker()
    for sid in (1, 2, 3):
        scene.submit(sid, prompt=200)
    assert [run.submit.sid for run in worker.of(Run)] == [1, 2]  # 400 uncomputed tokens: the window is full
    scene.dispatcher.report("w", report(2, pending=200, prefilled=[RowKey("g", 1)]), scene.now)
    assert [run.submit.sid for run in worker.of(Run)] == [1, 2, 3]


def test_a_prompt_that_does_not_fit_waits_for_blocks_and_nobody_overtakes(scene: Scene) -> None:
    worker = scene.worker(blocks=20)
    scene.submit(1, prompt=160)
    scene.dispatcher.report("w", report(2, free_blocks=9, prefilled=[RowKey("g", 1)]), scene.now)
    scene.submit(2, prompt=160)
    scene.submit(3, prompt=5)
    assert [run.submit.sid for run in worker.of(Run)] == [1]
    scene.dispatcher.report("w", report(3, free_blocks=20, ended=[RowKey("g", 1)]), scene.now)
    assert [run.submit.sid for run in worker.of(Run)] == [1, 2, 3]


def test_a_prompt_no_replica_can_ever_hold_is_refused(scene: Scene) -> None:
    scene.worker(max_tokens=100)
    scene.submit(1, prompt=100)
    assert [e.code for e in scene.gateway.of(Ended)] == ["refused"]


def test_the_less_loaded_replica_is_chosen(scene: Scene) -> None:
    a, b = scene.worker("a"), scene.worker("b")
    scene.submit(1, prompt=100)
    scene.submit(2, prompt=100)
    assert len(a.of(Run)) == len(b.of(Run)) == 1


def test_cancel_while_queued_ends_once_and_never_runs(scene: Scene) -> None:
    scene.submit(1)
    scene.dispatcher.cancel("g", Cancel(sid=1))
    scene.dispatcher.cancel("g", Cancel(sid=1))
    worker = scene.worker()
    assert [(e.sid, e.code) for e in scene.gateway.of(Ended)] == [(1, "cancelled")]
    assert worker.of(Run) == []


def test_cancel_once_placed_reaches_the_worker(scene: Scene) -> None:
    worker = scene.worker()
    scene.submit(1)
    scene.dispatcher.cancel("g", Cancel(sid=1))
    assert worker.of(CancelRow) == [CancelRow(row=RowKey("g", 1), reason="cancelled")]


def test_expired_requests_end_before_they_reach_a_replica(scene: Scene) -> None:
    scene.submit(1, deadline_ms=1_000)
    scene.submit(2, deadline_ms=60_000)
    scene.silent_for(1_500)
    assert [(e.sid, e.code) for e in scene.gateway.of(Ended)] == [(1, "deadline_exceeded")]
    worker = scene.worker()
    assert [(e.sid, e.code) for e in scene.gateway.of(Ended)] == [(1, "deadline_exceeded")]
    assert [run.submit.sid for run in worker.of(Run)] == [2]


def test_a_full_queue_refuses_with_a_retry_time() -> None:
    scene = Scene(queue=QueueSettings(queue_least=1, queue_most=2))
    scene.worker(max_rows=1)
    for sid in (1, 2, 3, 4):
        scene.submit(sid)
    ended = scene.gateway.of(Ended)
    assert [(e.sid, e.code) for e in ended] == [(4, "queue_full")]
    assert 1_000 <= ended[0].retry_after_ms <= 60_000


def test_a_worker_refusal_for_capacity_puts_the_request_back_in_its_place(scene: Scene) -> None:
    worker = scene.worker(max_rows=1)
    scene.submit(1)
    scene.submit(2)
    refusal = Refused(row=RowKey("g", 1), code="capacity", message="no")
    scene.dispatcher.refused("w", refusal, scene.now)
    scene.now += REFUSAL_PAUSE_MS
    scene.dispatcher.report("w", report(2), scene.now)
    assert [run.submit.sid for run in worker.of(Run)] == [1, 1]


def test_a_worker_that_drains_gets_nothing_more(scene: Scene) -> None:
    draining = scene.worker("old")
    scene.submit(1)
    scene.dispatcher.refused("old", Refused(row=RowKey("g", 1), code="draining", message=""), scene.now)
    scene.now += REFUSAL_PAUSE_MS
    scene.dispatcher.report("old", report(2), scene.now)
    assert len(draining.of(Run)) == 1
    assert [run.submit.sid for run in scene.worker("new").of(Run)] == [1]


def test_who_was_let_in_is_let_in_again_when_its_replica_was_lost() -> None:
    # Given a queue that is full
    scene = Scene(queue=QueueSettings(queue_least=1, queue_most=2, queue_unknown=2))
    for sid in range(5):
        scene.submit(sid)
    assert [ended.sid for ended in scene.gateway.of(Ended)] == [2, 3, 4]
    # When a request comes whose replica was lost
    scene.submit(9, moves=1)
    # Then it waits, and runs
    assert [ended.sid for ended in scene.gateway.of(Ended)] == [2, 3, 4]
    assert 9 in [run.submit.sid for run in scene.worker().of(Run)]


def test_any_other_refusal_ends_the_request(scene: Scene) -> None:
    scene.worker()
    scene.submit(1)
    scene.dispatcher.refused("w", Refused(row=RowKey("g", 1), code="unservable", message="x"), scene.now)
    assert [e.code for e in scene.gateway.of(Ended)] == ["refused"]


def test_a_silent_worker_is_suspect_then_dead_and_gateways_hear_of_it(scene: Scene) -> None:
    worker = scene.worker()
    scene.silent_for(800)
    scene.submit(1)
    assert worker.of(Run) == []  # suspect: nothing new
    scene.silent_for(800)
    assert [d.incarnation for d in scene.gateway.of(WorkerDown)] == ["w"]


def test_a_worker_that_warms_is_given_nothing_until_it_says_that_it_is_ready(scene: Scene) -> None:
    worker = Inbox()
    scene.dispatcher.worker_joined(hello("worker", "w", "w"), worker, scene.now)
    scene.submit(1)
    assert worker.of(Run) == []  # it said nothing yet
    warming = msgspec.structs.replace(report(1, free_blocks=64), warming=True)
    scene.dispatcher.report("w", warming, scene.now)
    assert worker.of(Run) == []
    assert [view.state for view in scene.dispatcher.fleet_state(scene.now, 0).workers] == ["warming"]
    scene.dispatcher.report("w", report(2, free_blocks=64), scene.now)
    assert [run.submit.sid for run in worker.of(Run)] == [1]
    assert [view.state for view in scene.dispatcher.fleet_state(scene.now, 0).workers] == ["ready"]


def test_a_worker_that_comes_back_after_being_declared_dead_drops_its_rows() -> None:
    scene = Scene(rejoin_grace_ms=0)
    scene.worker()
    scene.submit(1)
    scene.dispatcher.worker_lost("w", "reset")
    back = scene.worker(running=[RowKey("g", 1)])
    assert back.of(CancelRow) == [CancelRow(row=RowKey("g", 1), reason="moved")]


def test_a_new_dispatcher_believes_what_workers_run(scene: Scene) -> None:
    worker = scene.worker(running=[RowKey("g", 7)])
    scene.submit(7)
    assert worker.of(Run) == []
    assert {p.sid for p in scene.gateway.of(Placed)} == {7}


def test_a_gateway_that_stays_away_has_its_requests_ended_everywhere(scene: Scene) -> None:
    worker = scene.worker(max_rows=1)
    scene.submit(1)
    scene.submit(2)
    scene.dispatcher.gateway_lost("g", scene.now)
    for _ in range(4):
        scene.dispatcher.report("w", report(2), scene.now)
        scene.silent_for(800, except_gateway=False)
    assert worker.of(GatewayGone) == [GatewayGone(gateway="g")]
    scene.dispatcher.worker_heard("w", scene.now)
    scene.dispatcher.report("w", report(3, ended=[RowKey("g", 1)]), scene.now)
    assert [run.submit.sid for run in worker.of(Run)] == [1]  # the queued one is gone


def test_a_gateway_that_reconnects_in_time_keeps_its_requests(scene: Scene) -> None:
    scene.submit(1)
    scene.dispatcher.gateway_lost("g", scene.now)
    scene.silent_for(1_000, except_gateway=False)
    again = Inbox()
    scene.dispatcher.gateway_joined(hello("gateway", "gateway-0", "g"), again, scene.now)
    scene.worker()
    assert again.of(WorkerUp)
    assert [p.sid for p in again.of(Placed)] == [1]


def test_the_fleet_state_counts_what_is_there(scene: Scene) -> None:
    scene.worker(max_rows=1)
    scene.submit(1)
    scene.submit(2)
    scene.silent_for(40)
    state = scene.dispatcher.fleet_state(scene.now, 5)
    assert [w.state for w in state.workers] == ["ready"]
    assert {(q.klass, q.depth, q.oldest_ms) for q in state.queues if q.depth} == {("interactive", 1, 40)}
    assert [(g.id, g.streams) for g in state.gateways] == [("gateway-0", 2)]
    assert state.submitted == 2


def test_uuid7_is_ordered_by_time_and_valid() -> None:
    earlier, later = uuid7(1_000, (1 << 74) - 1), uuid7(1_001, 0)
    assert earlier < later
    assert earlier.version == later.version == 7
    assert earlier.variant == "specified in RFC 4122"
