"""Rows of a gateway that is gone end soon and are on record; a gateway that is merely slow loses nothing."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuworker import outbox
from gpuworker.outbox import Outboxes
from gpuworker.wire.connection import Connection, listen
from gpuworker.wire.messages import End, Frame, Heartbeat, RowKey
from tests.worker.conftest import Stage
from tests.worker.peers import GatewayEnd, usage_until_ended

ROW = RowKey("g", 1)


async def test_rows_of_a_vanished_gateway_end_and_the_journal_says_so(stage: Stage) -> None:
    await stage.start("--step-ms", "10")
    gone, stays = await stage.gateway(), await stage.gateway()
    for sid in range(3):
        stage.run(gone, sid, "gone", max_tokens=3000, request_id=f"gone-{sid}")
    stage.run(stays, 1, "stays", max_tokens=300, request_id="stays")
    await gone.until(lambda: gone.text(2))
    begun = asyncio.get_running_loop().time()
    assert gone.connection is not None
    gone.connection.abort("gone")
    await stage.dispatcher.until(lambda: gone.row(2) in stage.dispatcher.ended)
    waited_s = asyncio.get_running_loop().time() - begun
    assert 1.9 < waited_s < 4
    await stays.until_ended(1)
    assert stays.text(1) == "stays" * 60
    await stage.dispatcher.until_idle()
    names = ["gone-0", "gone-1", "gone-2", "stays"]
    records = await usage_until_ended(stage.worker.address, *names)
    assert {record: records[record].reason for record in records} == {
        "gone-0": "gateway_lost",
        "gone-1": "gateway_lost",
        "gone-2": "gateway_lost",
        "stays": "length",
    }
    assert records["gone-0"].output_tokens > 100


async def test_a_gateway_that_comes_back_in_time_keeps_its_rows(stage: Stage) -> None:
    await stage.start("--step-ms", "10")
    gateway = await stage.gateway()
    stage.run(gateway, 1, "back", max_tokens=200)
    await gateway.until(lambda: gateway.text(1))
    assert gateway.connection is not None
    gateway.connection.close()
    await gateway.until(lambda: gateway.closed)
    await gateway.connect()
    await gateway.until_ended(1)
    assert gateway.ends[1].reason == "length"


# -- the outbox alone, on a manual clock ------------------------------------------------------------------


def frame(step: int, text: str = "x", *, end: bool = False) -> Frame:
    ends = [
        End(
            sid=1,
            reason="length",
            prompt_tokens=1,
            cached_tokens=0,
            output_tokens=step,
            queue_ms=0,
            prefill_ms=0,
            decode_ms=0,
            preemptions=0,
        )
    ]
    return Frame(step=step, sids=[1], starts=[step], counts=[1], texts=[text], ends=ends if end else [])


@dataclass
class Link:
    """The worker's connection to one gateway; the gateway reads from `server`'s next visitor."""

    outboxes: Outboxes
    lost: list[str]
    address: str
    opened: "asyncio.Queue[Connection]"
    gateways: list[GatewayEnd] = field(default_factory=list)


@pytest.fixture
async def link(folder: Path) -> AsyncIterator[Link]:
    lost: list[str] = []
    address = f"unix:{folder}/o.sock"
    opened: asyncio.Queue[Connection] = asyncio.Queue()
    server = await listen(address, lambda *_: None, lambda *_: None, opened.put_nowait)
    link = Link(Outboxes(lost.append), lost, address, opened)
    yield link
    for gateway in link.gateways:
        await gateway.close()
    server.close()
    await server.wait_closed()


async def gateway_open(link: Link) -> tuple[Connection, GatewayEnd]:
    gateway = GatewayEnd(link.address)
    link.gateways.append(gateway)
    connecting = asyncio.create_task(gateway.connect())
    connection = await link.opened.get()
    gateway.answers.append(Heartbeat())
    gateway.notify()
    await connecting
    return connection, gateway


async def test_a_gateway_that_never_comes_is_lost_after_five_seconds(link: Link) -> None:
    link.outboxes.row_add(ROW, 0)
    link.outboxes.send("g", frame(1), 10)
    link.outboxes.tick(4_999)
    assert link.lost == []
    link.outboxes.tick(5_000)
    assert link.lost == ["g"]


async def test_a_gateway_that_comes_too_late_still_hears_that_its_rows_ended(link: Link) -> None:
    link.outboxes.row_add(ROW, 0)
    link.outboxes.send("g", frame(1), 10)
    link.outboxes.tick(5_000)
    link.outboxes.send("g", frame(2, end=True), 5_010)
    assert link.outboxes.is_settled
    connection, gateway = await gateway_open(link)
    link.outboxes.attach("g", connection)
    await gateway.until_ended(1)
    (only,) = gateway.frames
    assert only.texts == []


async def test_an_absent_gateway_costs_bounded_memory(link: Link) -> None:
    link.outboxes.row_add(ROW, 0)
    for step in range(9):
        assert link.lost == []
        link.outboxes.send("g", frame(step, "x" * (1 << 20)), 10)
        if link.lost:
            break
    assert link.lost == ["g"]
    assert (step + 1) << 20 == outbox.OUTBOX_BYTES


async def test_a_gateway_that_does_not_read_is_cut_off_and_lost_at_once(link: Link) -> None:
    connection, _ = await gateway_open(link)
    link.outboxes.attach("g", connection)
    link.outboxes.row_add(ROW, 0)
    for step in range(40):  # nobody reads meanwhile: the loop is never given back
        link.outboxes.send("g", frame(step, "x" * (1 << 20)), 10)
    assert link.lost == ["g"]
    assert not connection.is_open
    link.outboxes.detach("g", connection, 20)
    link.outboxes.send("g", frame(50, end=True), 30)
    link.outboxes.tick(40_000)
    assert link.outboxes.connections == []


async def test_an_idle_connection_is_kept_warm_and_a_busy_one_is_not_bothered(link: Link) -> None:
    connection, gateway = await gateway_open(link)
    link.outboxes.attach("g", connection)
    link.outboxes.row_add(ROW, 0)
    link.outboxes.send("g", frame(1), 0)
    link.outboxes.tick(250)
    link.outboxes.tick(500)
    await gateway.until(lambda: gateway.frames and len(gateway.answers) == 2)
    assert gateway.answers[1] == Heartbeat()
