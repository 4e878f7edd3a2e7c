"""A client that reads slowly: its sequence pauses, nobody else waits, memory is bounded, it may be cut."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import pytest_asyncio

from gpuworker.wire.messages import Pause, Resume, Submit
from tests.gateway.harness import MODEL, QUICK, GatewayProcess, gateway_started
from tests.gateway.peers import WAIT_S, echo
from tests.gateway.raw import resident_bytes
from tests.gateway.slow_client import SlowClient, slow_client

pytestmark = pytest.mark.asyncio(loop_scope="package")

CHAT = "/v1/chat/completions"
SLOW_READER_S = 1.5
LIMITS = {**QUICK, "slow_reader_s": SLOW_READER_S, "final_write_s": 0.2}
KIB = 1024
ROW = "x" * 8 * KIB
BUFFERS_BYTES = 1024 * KIB  # of one client: the pause's bound, both kernels' buffers, what was on its way


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def slow_process() -> AsyncIterator[GatewayProcess]:
    async with gateway_started(limits=LIMITS) as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="package")
async def slow(slow_process: GatewayProcess) -> AsyncIterator[GatewayProcess]:
    slow_process.peers_reset()
    await slow_process.ready()
    yield slow_process
    await slow_process.idle()


def body(*, stream: bool) -> bytes:
    message = {"role": "user", "content": "hi"}
    return json.dumps({"model": MODEL, "messages": [message], "stream": stream}).encode()


@asynccontextmanager
async def begun(gateway: GatewayProcess) -> AsyncIterator[tuple[SlowClient, Submit]]:
    """Placed on the worker."""
    data = body(stream=True)
    headers = f"host: x\r\n{gateway.authorization()}\r\ncontent-length: {len(data)}\r\n\r\n"
    head = f"POST {CHAT} HTTP/1.1\r\n{headers}".encode()
    async with slow_client(gateway.port, head + data) as client:
        submit = await gateway.dispatcher.submitted()
        gateway.dispatcher.place(submit, gateway.worker)
        yield client, submit


async def fill(gateway: GatewayProcess, submit: Submit, sent: int = 0) -> int:
    """Rows until the worker is asked to pause; how many it has then sent."""
    most = sent + 2 * BUFFERS_BYTES // len(ROW)
    while gateway.worker.pauses.empty():
        gateway.worker.emit(submit.sid, sent, 1, ROW)
        sent += 1
        assert sent < most, "nobody asks it to pause"
        await asyncio.sleep(0.002)
    asked = gateway.worker.pauses.get_nowait()
    assert asked == Pause(sid=submit.sid)
    return sent


async def test_its_sequence_pauses_and_goes_on_when_it_reads(slow: GatewayProcess) -> None:
    cut_before = await slow.metric("slow_readers_cut_total")
    async with begun(slow) as (client, submit):
        sent = await fill(slow, submit)
        assert sent * len(ROW) < BUFFERS_BYTES
        await asyncio.sleep(0.2)
        assert slow.worker.pauses.empty()

        reading = asyncio.create_task(client.read_to_the_end())
        assert await asyncio.wait_for(slow.worker.pauses.get(), WAIT_S) == Resume(sid=submit.sid)
        slow.worker.emit(submit.sid, sent, 1, "the last")
        slow.worker.finish(submit.sid, "stop", output=sent + 1)

        await asyncio.wait_for(reading, WAIT_S)
        texts = re.findall(rb'"content":"([^"]+)"', client.received)
        assert texts == [ROW.encode()] * sent + [b"the last"]
        assert b"data: [DONE]" in client.received
        await slow.idle()
        record = slow.usage_of(submit.request_id)
        assert (record.outcome, record.output_tokens) == ("completed", sent + 1)
        assert await slow.metric("slow_readers_cut_total") == cut_before


async def test_one_byte_at_a_time_holds_up_nobody_and_is_cut_and_billed(slow: GatewayProcess) -> None:
    loop = asyncio.get_running_loop()
    cut_before = await slow.metric("slow_readers_cut_total")
    async with begun(slow) as (client, submit):
        dripping = asyncio.create_task(client.drip(0.02))
        sent = await fill(slow, submit)
        paused_at = loop.time()

        took = []
        with slow.dispatcher.scripted(echo(slow.dispatcher)):
            while slow.worker.cancels.empty():
                began_at = loop.time()
                assert (await slow.post(CHAT, body(stream=False))).status == 200
                took.append(loop.time() - began_at)
                await asyncio.sleep(0.02)
                assert loop.time() - paused_at < SLOW_READER_S + 2
        assert sorted(took)[len(took) // 2] < 0.05
        assert loop.time() - paused_at > SLOW_READER_S - 0.5

        cancel = slow.worker.cancels.get_nowait()
        assert (cancel.sid, cancel.reason) == (submit.sid, "cancelled")
        dripping.cancel()
        reading = asyncio.create_task(client.read_to_the_end())
        await asyncio.wait_for(reading, WAIT_S)  # the connection is closed, what was buffered comes first
        await slow.idle()
        assert await slow.metric("slow_readers_cut_total") == cut_before + 1
        record = slow.usage_of(submit.request_id)
        assert (record.outcome, record.output_tokens) == ("cancelled", sent)


async def test_slow_but_steady_is_paused_again_and_again_and_never_cut(slow: GatewayProcess) -> None:
    loop = asyncio.get_running_loop()
    async with begun(slow) as (client, submit):
        until = loop.time() + 2 * SLOW_READER_S

        async def steady() -> None:
            while loop.time() < until:
                assert await client.read(16 * KIB)
                await asyncio.sleep(0.02)
            await client.read_to_the_end()

        reading = asyncio.create_task(steady())
        sent = pauses = 0
        while loop.time() < until:
            sent = await fill(slow, submit, sent)
            pauses += 1
            assert await asyncio.wait_for(slow.worker.pauses.get(), WAIT_S) == Resume(sid=submit.sid)
        slow.worker.finish(submit.sid, "stop", output=sent)
        await asyncio.wait_for(reading, WAIT_S)
        assert b"data: [DONE]" in client.received
        assert pauses > 3


async def test_many_slow_readers_cost_bounded_memory_and_all_of_them_may_leave(slow: GatewayProcess) -> None:
    await slow.metric("tasks")
    before = resident_bytes(slow.process.pid)
    async with AsyncExitStack() as clients:
        sids = {(await clients.enter_async_context(begun(slow)))[1].sid for _ in range(40)}
        sent = 0
        paused: set[int] = set()
        while paused != sids:
            for sid in sids - paused:
                slow.worker.emit(sid, sent, 1, ROW)
            sent += 1
            assert sent * len(ROW) < 2 * BUFFERS_BYTES, f"{len(paused)} of {len(sids)} are paused"
            await asyncio.sleep(0.01)
            while not slow.worker.pauses.empty():
                paused.add(slow.worker.pauses.get_nowait().sid)
        assert resident_bytes(slow.process.pid) - before < len(sids) * 512 * KIB
    left = {(await asyncio.wait_for(slow.worker.cancels.get(), WAIT_S)).sid for _ in sids}
    assert left == sids
