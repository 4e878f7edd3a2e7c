"""What the dispatcher does for requests whose replica was lost, and for charges of what never ran."""

import pytest
from msgspec.structs import replace

from gpuworker.wire.messages import DEAD_MS, HEARTBEAT_MS, Cancel, Ended, Refused, RowKey, Run, WorkerDown
from policy.failover_budget import BURST_MS
from policy.queue_settings import QueueSettings
from tests.dispatch.peers import Inbox, report
from tests.dispatch.scene import Scene


def ran(worker: Inbox) -> list[int]:
    return [run.submit.sid for run in worker.of(Run)]


def full(scene: Scene, seq: int, *, is_full: bool) -> None:
    scene.dispatcher.report("w", replace(report(seq), full=is_full), scene.now)


@pytest.mark.parametrize("phase_ms", range(0, HEARTBEAT_MS, 50))
def test_a_silent_worker_is_lost_in_time_whenever_its_last_word_came(scene: Scene, phase_ms: int) -> None:
    scene.worker()
    scene.silent_for(phase_ms)
    scene.dispatcher.worker_heard("w", scene.now)
    heard_ms = scene.now
    # Ticks come every HEARTBEAT_MS, since before its last word
    scene.silent_for(HEARTBEAT_MS - phase_ms)
    while not scene.gateway.of(WorkerDown):
        scene.silent_for(HEARTBEAT_MS)
    assert DEAD_MS - 2 * HEARTBEAT_MS < scene.now - heard_ms <= DEAD_MS


def test_what_goes_on_waits_by_its_start_like_others_of_its_tenant() -> None:
    # Given a fleet that has computed so much again that nothing comes first any more
    scene = Scene()
    worker = scene.worker(max_rows=16, max_tokens=100_000, blocks=10_000)
    full(scene, 2, is_full=True)
    scene.submit(1, moves=1, prompt=int(BURST_MS) * 40, start_ms=9_000, deadline_ms=600_000)
    scene.dispatcher.worker_heard("w", scene.now)
    # When a stream with tokens comes from a lost replica, between two that are new
    scene.submit(2, start_ms=10_000, deadline_ms=600_000)
    scene.submit(3, moves=1, emitted=5, start_ms=10_001, deadline_ms=500_000)
    scene.submit(4, start_ms=10_002, deadline_ms=600_000)
    full(scene, 3, is_full=False)
    # Then it is between them
    assert [sid for sid in ran(worker) if sid != 1] == [2, 3, 4]


def test_a_request_does_not_go_back_at_once_to_the_replica_that_its_gateway_lost(scene: Scene) -> None:
    # Given a request whose gateway lost its replica before the dispatcher noticed anything
    worker = scene.worker()
    scene.submit(1)
    assert ran(worker) == [1]
    # When it comes again
    scene.submit(2, moves=1, lost_on="w")
    # Then it waits for another one, or until this one is heard of
    assert ran(worker) == [1]
    other = scene.worker("other")
    assert ran(other) == [2]
    scene.submit(3, moves=1, lost_on="other")
    scene.submit(4, moves=1, lost_on="w")
    assert (ran(worker), ran(other)) == ([1], [2])
    full(scene, 2, is_full=False)
    assert sorted(ran(worker) + ran(other)) == [1, 2, 3, 4]


@pytest.mark.parametrize("is_submitted_first", [True, False])
def test_a_row_that_its_worker_announced_and_then_refused_runs_elsewhere(
    scene: Scene, is_submitted_first: bool
) -> None:
    # Given a new dispatcher that hears of a row from its worker and from its gateway
    if is_submitted_first:
        scene.submit(1, waited_ms=100)
    scene.worker(running=[RowKey("g", 1)])
    if not is_submitted_first:
        scene.submit(1, waited_ms=100)
    other = scene.worker("other")
    assert ran(other) == []
    # When the worker cannot run it after all
    scene.dispatcher.refused("w", Refused(row=RowKey("g", 1), code="capacity", message=""), scene.now)
    # Then another one does
    assert ran(other) == [1]
    assert not scene.gateway.of(Ended)


def test_what_was_let_in_before_is_not_refused_by_a_new_dispatcher() -> None:
    scene = Scene(queue=QueueSettings(queue_most=1))
    scene.submit(1)
    scene.submit(2)
    assert [ended.code for ended in scene.gateway.of(Ended)] == ["queue_full"]
    for sid in (3, 4):
        scene.submit(sid, waited_ms=1)
    assert [ended.sid for ended in scene.gateway.of(Ended)] == [2]


@pytest.mark.parametrize("code", ["unservable", "capacity"])
def test_a_refusal_gives_back_what_the_request_was_charged(code: str) -> None:
    # Given a tenant that is served, and another whose long prompt is refused: for good, or its client went
    scene = Scene()
    worker = scene.worker(max_rows=16)
    scene.submit(9, tenant="b")
    scene.submit(1, tenant="a", prompt=900)
    assert ran(worker) == [9, 1]
    if code == "capacity":
        scene.dispatcher.cancel("g", Cancel(sid=1))
    scene.dispatcher.refused("w", Refused(row=RowKey("g", 1), code=code, message=""), scene.now)
    assert [ended.sid for ended in scene.gateway.of(Ended)] == [1]
    # When both wait
    full(scene, 2, is_full=True)
    scene.submit(2, tenant="b")
    scene.submit(3, tenant="a")
    full(scene, 3, is_full=False)
    # Then it is not behind, as if it had been served
    assert ran(worker)[2:] == [3, 2]
