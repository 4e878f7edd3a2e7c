"""Who is told which flows are over their share, and how far a model's degradation goes, and when."""

from dispatch.announcing import REPEAT_MS
from gpuworker.wire.messages import Pressure, RowKey, Run, Shares
from tests.dispatch.peers import Inbox, hello, report
from tests.dispatch.scene import Scene

NOISY = ("noisy", "interactive")


def noise(scene: Scene, sids: range) -> None:
    for sid in sids:
        scene.submit(sid, tenant="noisy")


def said(scene: Scene, name: str = "w", **fields: object) -> None:
    scene.dispatcher.report(name, report(9, **fields), scene.now)  # type: ignore[arg-type]


def alive(scene: Scene, ms: float, *names: str) -> None:
    """Time passes; the workers report."""
    until = scene.now + ms
    while scene.now < until:
        for name in names:
            said(scene, name)
        scene.silent_for(min(250, until - scene.now))


def test_workers_hear_which_flows_are_over_their_share(scene: Scene) -> None:
    worker, twin = scene.worker("w", max_rows=4), scene.worker("twin", max_rows=4)
    other = scene.worker("other", digest="d2")
    scene.submit(100, tenant="quiet")
    noise(scene, range(1, 21))
    scene.silent_for(100)
    assert worker.of(Shares)[-1] == Shares(digest="d1", over=[NOISY])
    assert twin.of(Shares)[-1] == Shares(digest="d1", over=[NOISY])
    assert other.of(Shares) == []


def test_it_is_said_again_every_second_while_it_lasts(scene: Scene) -> None:
    worker = scene.worker(max_rows=4)
    scene.submit(100, tenant="quiet")
    noise(scene, range(1, 21))
    alive(scene, 200, "w")
    before = len(worker.of(Shares))
    alive(scene, 5 * REPEAT_MS, "w")
    assert len(worker.of(Shares)) - before == 5
    assert {tuple(shares.over) for shares in worker.of(Shares)[before:]} == {(NOISY,)}


def test_the_end_of_it_is_said_once(scene: Scene) -> None:
    worker = scene.worker(max_rows=8)
    scene.submit(100, tenant="quiet")
    noise(scene, range(1, 8))
    alive(scene, 200, "w")
    assert worker.of(Shares)[-1].over == [NOISY]
    said(scene, ended=[RowKey("g", run.submit.sid) for run in worker.of(Run)])
    said(scene, ended=[RowKey("g", run.submit.sid) for run in worker.of(Run)])
    alive(scene, 200, "w")
    assert worker.of(Shares)[-1].over == []
    before = len(worker.of(Shares))
    alive(scene, 3 * REPEAT_MS, "w")
    assert len(worker.of(Shares)) == before


def test_a_worker_that_joins_is_told_at_once(scene: Scene) -> None:
    scene.worker("w", max_rows=4)
    scene.submit(100, tenant="quiet")
    noise(scene, range(1, 21))
    scene.silent_for(100)
    late, helper, other = Inbox(), Inbox(), Inbox()
    scene.dispatcher.worker_joined(hello("worker", "late", "late"), late, scene.now)
    scene.dispatcher.worker_joined(hello("worker", "helper", "helper", serves="prefill"), helper, scene.now)
    scene.dispatcher.worker_joined(hello("worker", "other", "other", digest="d2"), other, scene.now)
    assert late.of(Shares) == helper.of(Shares) == [Shares(digest="d1", over=[NOISY])]
    assert other.of(Shares) == []


def test_one_tenant_alone_is_over_nothing(scene: Scene) -> None:
    worker = scene.worker(max_rows=4)
    noise(scene, range(1, 21))
    alive(scene, 2_000, "w")
    assert worker.of(Shares) == []


def pressed(scene: Scene) -> None:
    """One replica runs a long row, and six tenants wait for it: their expected wait nears their deadline."""
    scene.worker("w", max_rows=1)
    said(scene, cost=[10.0, 5.0, 0.2, 0.0, 0.0], row_limit=1)
    for sid in range(7):
        scene.submit(sid, tenant=f"tenant-{sid}", max_tokens=600, deadline_ms=300_000)
    alive(scene, 20_000, "w")


def levels(inbox: Inbox) -> list[int]:
    return [pressure.level for pressure in inbox.of(Pressure)]


def test_gateways_hear_of_a_models_degradation_and_again_every_second(scene: Scene) -> None:
    pressed(scene)
    assert sorted(set(levels(scene.gateway))) == [1, 2, 3]
    before = len(levels(scene.gateway))
    alive(scene, 5 * REPEAT_MS, "w")
    assert levels(scene.gateway)[before:] == [3] * 5
    last = scene.gateway.of(Pressure)[-1]
    assert (last.digest, last.wait_ms > 100_000) == ("d1", True)
    queues = scene.dispatcher.fleet_state(scene.now, 0).queues
    assert {(q.level, q.wait_ms, q.tenants) for q in queues} == {(3, last.wait_ms, 7)}


def test_the_end_of_a_degradation_is_said_once(scene: Scene) -> None:
    pressed(scene)
    for sid in range(7):
        said(scene, ended=[RowKey("g", sid)])
    alive(scene, 90_000, "w")
    assert levels(scene.gateway)[-2:] == [3, 0]
    before = len(levels(scene.gateway))
    alive(scene, 3 * REPEAT_MS, "w")
    assert len(levels(scene.gateway)) == before


def test_a_gateway_that_joins_hears_of_it_at_once_and_only_of_what_is_degraded(scene: Scene) -> None:
    pressed(scene)
    scene.worker("other", digest="d2")
    late = Inbox()
    scene.dispatcher.gateway_joined(hello("gateway", "gateway-1", "late"), late, scene.now)
    assert [(pressure.digest, pressure.level) for pressure in late.of(Pressure)] == [("d1", 3)]
