"""What the dispatcher says of the whole fleet reaches the engine's steps, and is not believed for ever."""

import asyncio

import pytest

from gpuworker.fleet_shares import FleetShares
from gpuworker.wire.messages import HEARTBEAT_MS, SHARES_MS, Heartbeat, Shares
from policy.flow import Flow
from tests.worker.conftest import Stage

OVER = Shares(digest="d", over=[("much", "interactive")])
FLOWS = frozenset({Flow("much", "interactive")})


def test_each_change_is_told_once_and_silence_ends_it() -> None:
    told: list[frozenset[Flow]] = []
    shares = FleetShares("d", told.append)
    shares.tick(0)
    shares.said(OVER, 0)
    shares.said(OVER, 1_000)
    shares.tick(SHARES_MS)
    assert told == [FLOWS]
    shares.tick(1_000 + SHARES_MS)
    shares.tick(2_000 + SHARES_MS)
    assert told == [FLOWS, frozenset()]
    shares.said(OVER, 9_000)
    shares.said(Shares(digest="d", over=[]), 9_100)
    assert told[2:] == [FLOWS, frozenset()]


def test_a_lost_dispatcher_has_said_nothing() -> None:
    told: list[frozenset[Flow]] = []
    shares = FleetShares("d", told.append)
    shares.said(OVER, 0)
    shares.drop()
    shares.drop()
    assert told == [FLOWS, frozenset()]


def test_shares_of_other_weights_are_ignored() -> None:
    told: list[frozenset[Flow]] = []
    FleetShares("another", told.append).said(OVER, 0)
    assert told == []


@pytest.mark.parametrize("dispatcher", ["is lost", "says no more"])
async def test_a_worker_pauses_the_rows_that_the_fleet_says_and_no_longer_than_it_says_so(
    stage: Stage, dispatcher: str
) -> None:
    # Given two tenants with a row each, on a machine where one meets the target
    await stage.start("--step-ms", "20", "--target-itl-ms", "15")
    gateway = await stage.gateway()
    for sid, tenant in enumerate(("much", "little")):
        stage.run(gateway, sid, "endless", max_tokens=3000, tenant=tenant)
    told = stage.dispatcher.reports
    await gateway.until(lambda: gateway.text(0) and gateway.text(1))
    seen = len(told)
    await stage.dispatcher.until(lambda: len(told) > seen + 5)
    assert not any(report.paused for report in told)
    # When one is over its share in the fleet, then its row is paused
    stage.dispatcher.send(Shares(digest=stage.digest, over=[("much", "interactive")]))
    await stage.dispatcher.until(lambda: told[-1].paused)
    # And when nobody says so any more, it goes on
    if dispatcher == "is lost":
        assert stage.dispatcher.worker is not None
        stage.dispatcher.worker.abort("lost")
        await stage.dispatcher.until(lambda: len(stage.dispatcher.hellos) == 2)
    else:
        for _ in range(SHARES_MS // HEARTBEAT_MS + 2):
            stage.dispatcher.send(Heartbeat())
            await asyncio.sleep(HEARTBEAT_MS / 1000)
    seen = len(told)
    await stage.dispatcher.until(lambda: len(told) > seen + 5)
    assert not any(report.paused for report in told[seen + 1 :])


async def test_a_worker_reports_the_machine_time_of_tenants_and_all_of_it_to_a_new_dispatcher(
    stage: Stage,
) -> None:
    # Given a worker whose steps last 10 ms, and two tenants
    await stage.start("--step-ms", "10")
    assert stage.dispatcher.reports[0].work == [], "the warm-up is nobody's"
    gateway = await stage.gateway()
    stage.run(gateway, 1, "short", max_tokens=5, tenant="a")
    await gateway.until_ended(1)
    stage.run(gateway, 2, "long", max_tokens=40, tenant="b", klass="batch")
    await gateway.until_ended(2)
    await stage.dispatcher.until(lambda: is_all_told(stage, Flow("b", "batch"), 400_000))
    # Then what was charged is the time that their steps took
    assert 50_000 <= work_of(stage, Flow("a", "interactive")) < 200_000
    assert work_of(stage, Flow("b", "batch")) < 1_200_000
    assert len(stage.dispatcher.reports[-1].cost) == 5
    assert stage.dispatcher.reports[-1].row_limit >= 1
    # And a dispatcher that it connects to anew hears of all of it, once
    assert stage.dispatcher.worker is not None
    seen = len(stage.dispatcher.reports)
    before = {flow: work_of(stage, flow) for flow in (Flow("a", "interactive"), Flow("b", "batch"))}
    stage.dispatcher.worker.abort("lost")
    await stage.dispatcher.until(lambda: len(stage.dispatcher.reports) > seen + 1)
    first, second = stage.dispatcher.reports[seen : seen + 2]
    assert {Flow(work.tenant, work.klass): work.total_us for work in first.work} == before
    assert second.work == []


def is_all_told(stage: Stage, flow: Flow, least_us: int) -> bool:
    """So much, and nothing more for some reports."""
    recent = stage.dispatcher.reports[-3:]
    return work_of(stage, flow) >= least_us and not any(report.work for report in recent)


def work_of(stage: Stage, flow: Flow) -> int:
    """As told last."""
    told = [work for report in stage.dispatcher.reports for work in report.work]
    return max((work.total_us for work in told if (work.tenant, work.klass) == flow), default=0)
