"""Prompts computed by one worker for another: same tokens, same bill, and no request is lost with it."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuworker.wire.messages import Cancel
from policy.placement import PREFILL_REMOTE_TOKENS
from tests.worker.fleet import Fleet
from tests.worker.peers import usage_collect, usage_until_ended
from tests.worker.support import weights_make

LONG = "a prompt that another worker computes, " * 50  # 1,950 tokens: four steps of 512
STEPS = ("--target-itl-ms", "off", "--step-ms")


@pytest.fixture
async def fleet(folder: Path) -> AsyncIterator[Fleet]:
    digest = weights_make(folder / "weights")
    fleet = await Fleet(folder, folder / "weights", digest).start()
    yield fleet
    await fleet.stop()


async def busy(fleet: Fleet, name: str) -> None:
    await fleet.until(lambda: (view := fleet.view(name)) is not None and view.running)


async def test_the_same_text_with_roles_and_without(fleet: Fleet) -> None:
    prompts = {1: LONG, 2: "short", 3: LONG + "!", 4: "x" * (PREFILL_REMOTE_TOKENS - 1), 5: "y" * 512}
    alone = await fleet.worker_start("b", "both")
    expected = {sid: await fleet.run(sid, text, max_tokens=40) for sid, text in prompts.items()}
    alone.signal(signal.SIGTERM)
    assert await alone.exit_status() == 0
    await fleet.worker_start("d", "decode")
    await fleet.worker_start("p", "prefill")
    for sid, text in prompts.items():
        await fleet.submit(100 + sid, text, max_tokens=40)
    for sid in prompts:
        text, end = await fleet.result(100 + sid)
        assert text == expected[sid][0]
        assert (end.reason, end.prompt_tokens, end.output_tokens) == ("length", len(prompts[sid]), 40)
    await fleet.until_idle("d", "p")


async def test_a_long_prompt_is_computed_by_the_other_worker_and_billed_once(fleet: Fleet) -> None:
    decode = await fleet.worker_start("d", "decode", *STEPS, "20")
    prefill = await fleet.worker_start("p", "prefill", *STEPS, "20")
    before = [await fleet.steps_of(name) for name in "dp"]
    text, end = await fleet.run(1, LONG, max_tokens=5)
    after = [await fleet.steps_of(name) for name in "dp"]
    assert text == LONG[:5]
    assert after[1] - before[1] >= 4, "the prompt was computed there"
    assert after[0] - before[0] <= 5 + 2, "and not here"
    assert (end.prompt_tokens, end.cached_tokens, end.output_tokens) == (len(LONG), 0, 5)
    records = await usage_until_ended(decode.address, "request-1")
    assert (records["request-1"].prompt_tokens, records["request-1"].cached_tokens) == (len(LONG), 0)
    assert (await usage_collect(prefill.address)).records == []
    await fleet.until_idle()


async def test_a_short_prompt_stays_where_it_is_decoded(fleet: Fleet) -> None:
    await fleet.worker_start("d", "decode")
    await fleet.worker_start("p", "prefill")
    before = await fleet.steps_of("p")
    await fleet.run(1, "x" * (PREFILL_REMOTE_TOKENS - 1))
    assert await fleet.steps_of("p") == before


async def test_what_is_cached_where_it_is_decoded_is_not_computed_again(fleet: Fleet) -> None:
    await fleet.worker_start("d", "decode")
    await fleet.worker_start("p", "prefill")
    await fleet.run(1, LONG)
    before = await fleet.steps_of("p")
    _, end = await fleet.run(2, LONG)
    assert end.cached_tokens == (len(LONG) - 1) // 16 * 16
    assert await fleet.steps_of("p") == before
    _, end = await fleet.run(3, LONG, tenant="another tenant")
    assert end.cached_tokens == 0
    assert await fleet.steps_of("p") > before


async def test_what_the_prefill_worker_had_cached_is_billed_as_cached(fleet: Fleet) -> None:
    first = await fleet.worker_start("d", "decode")
    await fleet.worker_start("p", "prefill")
    await fleet.run(1, LONG)
    first.signal(signal.SIGTERM)
    assert await first.exit_status() == 0
    await fleet.worker_start("e", "decode")
    text, end = await fleet.run(2, LONG)
    assert text == LONG[:8]
    assert end.cached_tokens == (len(LONG) - 1) // 16 * 16


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_prefill_worker_that_dies_or_freezes_costs_time_only(
    fleet: Fleet, number: signal.Signals
) -> None:
    await fleet.worker_start("d", "decode")
    prefill = await fleet.worker_start("p", "prefill", *STEPS, "400")
    await fleet.submit(1, LONG, max_tokens=20)
    await busy(fleet, "p")
    prefill.signal(number)
    text, end = await fleet.result(1)
    assert text == LONG[:20]
    assert (end.reason, end.prompt_tokens, end.cached_tokens) == ("length", len(LONG), 0)
    await fleet.until_idle("d")
    assert (await fleet.run(2, LONG + LONG))[0] == LONG[:8], "nobody is asked who is not there"


async def test_a_prefill_worker_that_is_too_slow_is_not_waited_for(fleet: Fleet) -> None:
    await fleet.worker_start("d", "decode")
    await fleet.worker_start("p", "prefill", *STEPS, "1500")
    text, end = await fleet.run(1, LONG, deadline_ms=3_000)
    assert (text, end.reason) == (LONG[:8], "length")
    await fleet.until_idle()


async def test_a_cancel_reaches_the_prompt_that_is_computed_elsewhere(fleet: Fleet) -> None:
    decode = await fleet.worker_start("d", "decode")
    await fleet.worker_start("p", "prefill", *STEPS, "700")
    await fleet.submit(1, LONG)
    await busy(fleet, "p")
    before = await fleet.steps_of("d")
    fleet.send(Cancel(sid=1))
    text, end = await fleet.result(1)
    assert (text, end.reason, end.prompt_tokens, end.output_tokens) == ("", "cancelled", 0, 0)
    await fleet.until_idle()
    assert await fleet.steps_of("d") <= before + 2
    assert (await usage_until_ended(decode.address, "request-1"))["request-1"].reason == "cancelled"


async def test_a_deadline_passes_while_the_prompt_is_computed_elsewhere(fleet: Fleet) -> None:
    await fleet.worker_start("d", "decode", *STEPS, "600")
    await fleet.worker_start("p", "prefill", *STEPS, "600")
    text, end = await fleet.run(1, LONG, deadline_ms=1_000)
    assert (text, end.reason, end.output_tokens) == ("", "deadline", 0)
    await fleet.until_idle()


async def test_a_prompt_whose_decode_worker_died_is_dropped(fleet: Fleet) -> None:
    decode = await fleet.worker_start("d", "decode")
    await fleet.worker_start("p", "prefill", *STEPS, "300")
    await fleet.submit(1, LONG * 2)
    await busy(fleet, "p")
    before = await fleet.steps_of("p")
    decode.signal(signal.SIGKILL)
    await fleet.until_idle("p")
    assert await fleet.steps_of("p") <= before + 4, "eight steps were needed"


async def test_a_prefill_worker_that_drains_finishes_what_it_began(fleet: Fleet) -> None:
    await fleet.worker_start("d", "decode", *STEPS, "50")
    prefill = await fleet.worker_start("p", "prefill", *STEPS, "200")
    await fleet.submit(1, LONG, max_tokens=3)
    await busy(fleet, "p")
    before = await fleet.steps_of("d")
    prefill.signal(signal.SIGTERM)
    await prefill.until(lambda: any("draining" in line for line in prefill.log))
    await fleet.submit(2, "another " + LONG, max_tokens=3)
    assert (await fleet.result(1))[0] == LONG[:3]
    assert (await fleet.result(2))[0] == "ano"
    assert await prefill.exit_status() == 0
    assert await fleet.steps_of("d") - before <= 4 + 3 + 3 + 3, "one prompt was computed here, not two"
    await fleet.until_idle("d")


async def test_many_at_once_and_none_is_left_behind(fleet: Fleet) -> None:
    await fleet.worker_start("d", "decode", "--kv-blocks", "400", "--max-rows", "8")
    await fleet.worker_start("p", "prefill", "--kv-blocks", "300", "--max-rows", "4")
    prompts = {sid: f"<{sid}> " * (100 + 40 * (sid % 5)) for sid in range(24)}
    for sid, prompt in prompts.items():
        await fleet.submit(sid, prompt, max_tokens=30)
        if sid % 4 == 3:
            await asyncio.sleep(0.05)
    for sid in range(0, 24, 6):
        fleet.send(Cancel(sid=sid))
    for sid, prompt in prompts.items():
        if sid in fleet.ended or sid % 6 == 0:
            continue
        text, end = await fleet.result(sid)
        assert (text, end.reason) == (prompt[:30], "length")
    await fleet.until_idle()


async def test_a_prefill_worker_that_drains_says_so_and_leaves_nobody_waiting(fleet: Fleet) -> None:
    await fleet.worker_start("d", "decode")
    prefill = await fleet.worker_start("p", "prefill", "--drain-s", "1.5", *STEPS, "2500")
    await fleet.submit(1, LONG, max_tokens=3)
    await busy(fleet, "p")
    prefill.signal(signal.SIGTERM)
    await fleet.until(lambda: (view := fleet.view("p")) is not None and view.state == "draining")
    begun = asyncio.get_running_loop().time()
    assert (await fleet.result(1))[0] == LONG[:3]
    assert asyncio.get_running_loop().time() - begun < 5, "computed here when the drain was over"
    assert await prefill.exit_status() == 0
    await fleet.until_idle("d")
