"""Thirty sequences in flight and their worker gone, or the dispatcher, with real processes: what may go on
does, all are billed, and streams elsewhere do not notice.

Steps of the scripted backend last a tenth of a second whatever they compute. So what is measured of streams
elsewhere is what gateway, dispatcher and workers add while they deal with the loss, not what it takes to
compute the moved prompts: the latency target bounds that. A busy machine adds some itself: `NOISE_S`.
"""

import asyncio
import math
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.gateway.replica_fleet import (
    ReplicaFleet,
    Seen,
    part_95,
    replica_fleet_started,
    said,
    stream,
    until,
)

pytestmark = pytest.mark.asyncio(loop_scope="package")

STEP_MS = 100
NOISE_S = 0.75  # until a client has seen it
NOISE_GAP_S = 0.05
CONTINUED, ENDED, FRESH = 16, 8, 6
ELSEWHERE = 6
TOKENS, FRESH_TOKENS, ENDLESS = 140, 60, 450
BEFORE, AFTER = 25, 60  # steps of which gaps are measured


@pytest_asyncio.fixture(loop_scope="package")
async def fleet() -> AsyncIterator[ReplicaFleet]:
    async with replica_fleet_started() as running:
        yield running


@pytest.mark.parametrize("how", ["killed", "stopped", "cut off"])
async def test_thirty_in_flight_when_their_worker_goes(fleet: ReplicaFleet, how: str) -> None:
    await fleet.dispatcher()
    doomed, _, _ = await asyncio.gather(
        fleet.worker("worker-0", step_ms=STEP_MS, dispatcher="d-0"),
        fleet.worker("worker-1", step_ms=STEP_MS, max_rows=ELSEWHERE),
        fleet.worker("worker-2", step_ms=STEP_MS // 2, dispatcher="d-2"),
    )
    to_gateway, to_dispatcher = await fleet.network_before("worker-0"), fleet.network("d-0", "d")
    seen = [Seen() for _ in range(CONTINUED + ENDED + FRESH)]
    continued, ended, fresh = seen[:CONTINUED], seen[CONTINUED:-FRESH], seen[-FRESH:]
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        goes_on = await stack.enter_async_context(fleet.client("continuing"))
        ends = await stack.enter_async_context(fleet.client("full"))
        # Given streams on a worker that they fill
        elsewhere = [Seen() for _ in range(ELSEWHERE)]
        await fleet.gateway.ready(within_s=20)
        endless = [group.create_task(stream(ends, n, one, ENDLESS)) for n, one in enumerate(elsewhere)]
        await until(lambda: all(one.moments for one in elsewhere))
        # And thirty sequences on another one
        await to_dispatcher.open()
        await until(lambda: fleet.rows("worker-0") == 0)
        tasks = [group.create_task(stream(goes_on, n, one, TOKENS)) for n, one in enumerate(continued)]
        tasks += [group.create_task(stream(ends, n, one, TOKENS)) for n, one in enumerate(ended, CONTINUED)]
        await until(lambda: all(one.moments for one in continued + ended))
        before = time.monotonic()
        await until(lambda: all(len(one.gaps(before, time.monotonic())) >= BEFORE for one in elsewhere))
        # Of which the gateway has no token of six
        to_gateway.hold()
        held = time.monotonic()
        first = CONTINUED + ENDED
        tasks += [group.create_task(stream(ends, n, one, FRESH_TOKENS)) for n, one in enumerate(fresh, first)]
        await until(lambda: fleet.rows("worker-0") == len(seen))
        # And a third worker, that has room
        await fleet.network("d-2", "d").open()
        await until(lambda: fleet.rows("worker-2") == 0)
        # When theirs goes
        gone = time.monotonic()
        match how:
            case "killed":
                doomed.kill()
            case "stopped":
                doomed.send_signal(signal.SIGSTOP)
            case _:
                to_gateway.cut()
                to_dispatcher.cut()
        await asyncio.wait_for(asyncio.gather(*tasks), 40)
        await until(lambda: all(len(one.gaps(gone, time.monotonic())) >= AFTER for one in elsewhere))
        for task in endless:
            task.cancel()
    detected_s = max(one.ended_at for one in ended) - gone
    fresh_s = max(one.first_after(0) for one in fresh) - gone
    continued_s = max(one.first_after(gone) for one in continued) - gone
    gaps = [
        part_95([gap for one in elsewhere for gap in one.gaps(*window)])
        for window in ((before, held), (gone, math.inf))
    ]
    print(
        f"{how}: detected {detected_s:.2f} s, without tokens {fresh_s:.2f} s, continued {continued_s:.2f} s,"
        f" elsewhere p95 {gaps[0] * 1000:.0f} ms before, {gaps[1] * 1000:.0f} ms after"
    )
    # Then it is noticed in time: those that may not go on end with a word
    assert [one.ending for one in ended] == ["replica_lost"] * ENDED
    assert detected_s <= (0.0 if how == "killed" else 1.5) + NOISE_S
    # Those without a token are served, and the others go on, without a token missing or doubled
    assert fresh_s <= 3
    assert continued_s <= 4
    for number, one in enumerate(seen):
        if one not in ended:
            expected = said(number, FRESH_TOKENS if one in fresh else TOKENS)
            assert (one.ending, one.text) == ("length", expected)
    # Streams elsewhere did not notice
    assert gaps[1] <= 1.2 * gaps[0] + NOISE_GAP_S
    # And all thirty are one row of usage each, that says how many replicas had it and why it was lost
    records = [fleet.gateway.usage_of(one.request_id) for one in seen]
    causes = ("crashed", "disconnected") if how == "killed" else ("silent",)
    for one, record in zip(seen, records, strict=True):
        outcome, attempts = ("replica_lost", 1) if one in ended else ("completed", 2)
        assert (record.outcome, record.replica_attempts) == (outcome, attempts)
        assert record.output_tokens == len(one.text)
        assert record.lost_cause in causes
        assert (record.recomputed_tokens > 0) == (one in continued)
    # And who was only silent comes back and computes nothing for them any more
    if how != "killed":
        doomed.send_signal(signal.SIGCONT)
        to_gateway.heal()
        to_dispatcher.heal()
        await until(lambda: fleet.rows("worker-0") == 0)
        await until(lambda: len(fleet.gateway.usage()) == len(seen) + ELSEWHERE)


async def test_the_dispatcher_is_killed_and_nothing_is_lost(fleet: ReplicaFleet) -> None:
    # Given a worker with all its rows taken, and six requests that wait
    dispatcher = await fleet.dispatcher()
    running, waiting = [Seen() for _ in range(CONTINUED + ENDED)], [Seen() for _ in range(FRESH)]
    await fleet.worker("worker-0", step_ms=STEP_MS, max_rows=len(running))
    await fleet.gateway.ready(within_s=20)
    async with fleet.client("full") as client, asyncio.TaskGroup() as group:
        many, few = BEFORE + AFTER + 20, 20
        for number, one in enumerate(running):
            group.create_task(stream(client, number, one, many))
        await until(lambda: all(one.moments for one in running))
        for number, one in enumerate(waiting, len(running)):
            group.create_task(stream(client, number, one, few))
        before = time.monotonic()
        await until(lambda: all(len(one.gaps(before, time.monotonic())) >= BEFORE for one in running))
        # When the dispatcher dies, and another one is started
        dispatcher.kill()
        gone = time.monotonic()
        await dispatcher.wait()
        fleet.state = None
        await fleet.dispatcher()
        await until(lambda: fleet.rows("worker-0") >= len(running))
        back = time.monotonic()
        assert not any(one.ending or one.moments for one in waiting)
    # Then streams did not notice
    assert back < min(one.ended_at for one in running), "they were to last longer than that"
    gaps = [
        part_95([gap for one in running for gap in one.gaps(*window)])
        for window in ((before, gone), (gone, math.inf))
    ]
    print(f"p95 {gaps[0] * 1000:.0f} ms before, {gaps[1] * 1000:.0f} ms after, back in {back - gone:.2f} s")
    assert gaps[1] <= 1.2 * gaps[0] + NOISE_GAP_S
    # And all thirty are whole, and were run once
    for number, one in enumerate(running + waiting):
        assert (one.ending, one.text) == ("length", said(number, many if one in running else few))
        record = fleet.gateway.usage_of(one.request_id)
        assert (record.outcome, record.replica_attempts, record.lost_cause) == ("completed", 1, "")
        assert record.output_tokens == len(one.text)
    assert len(fleet.gateway.usage()) == len(running) + len(waiting)
