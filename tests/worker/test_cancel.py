"""A cancelled row stops within two steps in every state, and leaves nothing behind."""

import pytest

from gpuworker.wire.messages import Cancel, CancelRow, GatewayGone
from tests.worker.conftest import Stage
from tests.worker.peers import GatewayEnd, usage_until_ended

STEP_MS = ("--step-ms", "80")
SMALL_POOL = ("--kv-blocks", "16")


async def cancel(stage: Stage, gateway: GatewayEnd, sid: int, way: str) -> int:
    """The step that was last known when the cancel was sent."""
    step = max(stage.dispatcher.reports[-1].step, *(frame.step for frame in gateway.frames[-1:]), 0)
    if way == "dispatcher":
        stage.dispatcher.send(CancelRow(row=gateway.row(sid), reason="cancelled"))
    else:
        gateway.send(Cancel(sid=sid))
    await gateway.until_ended(sid)
    return step


@pytest.mark.parametrize("way", ["dispatcher", "gateway"])
async def test_while_it_waits(stage: Stage, way: str) -> None:
    await stage.start(*STEP_MS, *SMALL_POOL)
    gateway = await stage.gateway()
    stage.run(gateway, 1, "x" * 200, max_tokens=12)
    stage.run(gateway, 2, "y" * 200, max_tokens=12)
    await stage.dispatcher.until(lambda: stage.dispatcher.reports[-1].waiting == 1)
    step = await cancel(stage, gateway, 2, way)
    end = gateway.ends[2]
    assert (end.reason, end.prompt_tokens, end.output_tokens) == ("cancelled", 0, 0)
    assert gateway.end_step(2) <= step + 2
    assert 1 not in gateway.ends, "its neighbour goes on"
    await gateway.until_ended(1)
    assert gateway.text(1) == "x" * 12
    await stage.dispatcher.until_idle()


@pytest.mark.parametrize("way", ["dispatcher", "gateway"])
async def test_while_it_is_prefilled(stage: Stage, way: str) -> None:
    await stage.start(*STEP_MS, "--target-itl-ms", "off")
    gateway = await stage.gateway()
    stage.run(gateway, 1, "p" * 4000, max_tokens=40)  # eight steps of 512
    await stage.dispatcher.until(lambda: 0 < stage.dispatcher.reports[-1].pending_prefill_tokens < 3600)
    step = await cancel(stage, gateway, 1, way)
    end = gateway.ends[1]
    assert (end.reason, end.prompt_tokens, end.output_tokens) == ("cancelled", 4000, 0)
    assert gateway.end_step(1) <= step + 2
    assert gateway.text(1) == ""
    await stage.dispatcher.until_idle()


@pytest.mark.parametrize("way", ["dispatcher", "gateway"])
async def test_while_it_decodes(stage: Stage, way: str) -> None:
    await stage.start(*STEP_MS)
    gateway = await stage.gateway()
    stage.run(gateway, 1, "going", max_tokens=1000)
    stage.run(gateway, 2, "on", max_tokens=12)
    await gateway.until(lambda: len(gateway.text(1)) >= 3)
    step = await cancel(stage, gateway, 1, way)
    assert gateway.ends[1].reason == "cancelled"
    assert gateway.end_step(1) <= step + 2
    assert gateway.ends[1].output_tokens == len(gateway.text(1)), "tokens shown are tokens counted"
    await gateway.until_ended(2)
    assert gateway.text(2) == "on" * 6
    await stage.dispatcher.until_idle()
    records = await usage_until_ended(stage.worker.address, "request-1", "request-2")
    assert records["request-1"].reason == "cancelled"
    assert records["request-1"].output_tokens == gateway.ends[1].output_tokens


async def test_cancelling_what_is_unknown_or_over_changes_nothing(stage: Stage) -> None:
    await stage.start()
    gateway, other = await stage.gateway(), await stage.gateway()
    stage.run(gateway, 1, "over", max_tokens=2)
    await gateway.until_ended(1)
    for sid in (1, 99):
        gateway.send(Cancel(sid=sid))
        stage.dispatcher.send(CancelRow(row=gateway.row(sid), reason="cancelled"))
    stage.run(gateway, 2, "mine", max_tokens=400)
    other.send(Cancel(sid=2))  # the same number, another gateway
    await gateway.until_ended(2)
    assert gateway.ends[1].reason == gateway.ends[2].reason == "length"


async def test_a_gateway_that_is_gone_loses_its_rows_and_nobody_elses(stage: Stage) -> None:
    await stage.start("--step-ms", "10")
    gone, stays = await stage.gateway(), await stage.gateway()
    for sid in range(5):
        stage.run(gone, sid, "gone", max_tokens=1000)
        stage.run(stays, sid, "stays", max_tokens=50)
    await gone.until(lambda: gone.text(4))
    stage.dispatcher.send(GatewayGone(gateway=gone.incarnation))
    await gone.until_ended(*range(5))
    assert {end.reason for end in gone.ends.values()} == {"gateway_lost"}
    await stays.until_ended(*range(5))
    assert {stays.text(sid) for sid in range(5)} == {"stays" * 10}
    await stage.dispatcher.until_idle()


async def test_a_deadline_ends_the_row(stage: Stage) -> None:
    await stage.start("--step-ms", "10")
    gateway = await stage.gateway()
    stage.run(gateway, 1, "late", max_tokens=1000, deadline_ms=100)
    await gateway.until_ended(1)
    assert gateway.ends[1].reason == "deadline"
    await stage.dispatcher.until_idle()
