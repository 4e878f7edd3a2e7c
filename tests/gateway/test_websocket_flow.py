"""The life of a socket: credit, slow readers, cancelled requests, clients that leave, silence, its end."""

import asyncio
import json
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from gpuworker.wire.messages import Pause, Resume, Submit
from tests.gateway.harness import MODEL, QUICK, GatewayProcess, gateway_started
from tests.gateway.peers import WAIT_S, echo
from tests.gateway.raw import resident_bytes
from tests.gateway.sockets import MESSAGES, SERVER, SocketClient, socket_open

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS = {**QUICK, "slow_reader_s": 0.6, "final_write_s": 0.3, "socket_ping_s": 0.3, "pause_bytes": 4096}
WORD = "word " * 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process() -> AsyncIterator[GatewayProcess]:
    async with gateway_started(limits=LIMITS, server_arguments=SERVER) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(process: GatewayProcess) -> AsyncIterator[GatewayProcess]:
    process.peers_reset()
    await process.ready()
    yield process
    await process.idle()


@pytest_asyncio.fixture(loop_scope="module")
async def client(gateway: GatewayProcess) -> AsyncIterator[SocketClient]:
    async with socket_open(gateway) as opened:
        yield opened


def descriptors(gateway: GatewayProcess) -> int:
    """How many the process has open."""
    return len(list(Path(f"/proc/{gateway.process.pid}/fd").iterdir()))


async def placed(gateway: GatewayProcess) -> Submit:
    submit = await gateway.dispatcher.submitted()
    gateway.dispatcher.place(submit, gateway.worker)
    return submit


async def told_worker(gateway: GatewayProcess, kind: type[Pause] | type[Resume], sid: int) -> float:
    """When the worker gets it."""
    queue: asyncio.Queue[Any] = gateway.worker.pauses
    while True:
        message = await asyncio.wait_for(queue.get(), WAIT_S)
        if isinstance(message, kind) and message.sid == sid:
            return time.monotonic()


async def test_without_credit_a_request_waits_alone(gateway: GatewayProcess, client: SocketClient) -> None:
    await client.create("slow", window=3)
    slow = await placed(gateway)
    for number in range(60):
        gateway.worker.emit(slow.sid, number, 1, WORD)
    await told_worker(gateway, Pause, slow.sid)
    with gateway.dispatcher.scripted(echo(gateway.dispatcher)):
        assert (await client.chat("quick")).last["type"] == "done"
    assert [frame["seq"] for frame in client.told["slow"].chunks] == [1, 2, 3]

    await client.send(type="ack", id="slow", seq=2)
    assert await client.is_open()
    assert len(client.told["slow"].chunks) == 5
    await client.send(type="ack", id="slow", seq=10_000)  # of none that was sent yet: counts for what was
    assert await client.is_open()
    assert len(client.told["slow"].chunks) == 8

    while len(client.told["slow"].chunks) < 61:  # one says the role
        await client.send(type="ack", id="slow", seq=client.told["slow"].last["seq"])
        await client.receive()
    await told_worker(gateway, Resume, slow.sid)
    gateway.worker.finish(slow.sid, "stop", output=60)
    await client.send(type="ack", id="slow", seq=61)
    await client.ended("slow")
    assert client.told["slow"].text == WORD * 60
    assert client.told["slow"].gapless()


async def test_who_gives_no_credit_is_cut_and_the_socket_stays(
    gateway: GatewayProcess, client: SocketClient
) -> None:
    await client.create("slow", window=1)
    slow = await placed(gateway)
    gateway.worker.emit(slow.sid, 0, 1, WORD)
    (told,) = await client.ended("slow")
    assert told.last["error"]["code"] == "slow_reader"
    assert len(told.chunks) == 1
    with gateway.dispatcher.scripted(echo(gateway.dispatcher)):
        assert (await client.chat("next")).last["type"] == "done"
    await gateway.idle_requests()
    assert gateway.usage_of(told.request_id).outcome == "cancelled"


async def test_who_does_not_read_is_dropped_in_bounded_memory(gateway: GatewayProcess) -> None:
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", gateway.port))
    headers = {"Authorization": f"Bearer {gateway.key}"}
    before = resident_bytes(gateway.process.pid)
    async with (
        connect(
            f"ws://127.0.0.1:{gateway.port}/v1/stream", sock=raw, additional_headers=headers, max_queue=1
        ) as stalled,
        socket_open(gateway) as other,
    ):
        frame = {"type": "request.create", "body": {"model": MODEL, "messages": MESSAGES, "stream": True}}
        for number in range(8):
            await stalled.send(json.dumps({**frame, "id": f"r{number}"}))
        submits = [await placed(gateway) for _ in range(8)]
        stalled.transport.pause_reading()
        started, sent, slowest_s = time.monotonic(), 0, 0.0
        while await gateway.metric("open_sockets") == 2:
            assert time.monotonic() - started < 10
            for submit in submits:
                if sent < 5000 and submit.sid in gateway.worker.counts:
                    gateway.worker.emit(submit.sid, sent, 1, WORD * 20)
            sent += 1
            at = time.monotonic()
            assert await other.is_open()
            slowest_s = max(slowest_s, time.monotonic() - at)
        assert slowest_s < 0.2
        assert resident_bytes(gateway.process.pid) - before < 24 << 20
        stalled.transport.abort()
    await gateway.idle()
    outcomes = [gateway.usage_of(submit.request_id).outcome for submit in submits]
    assert outcomes == ["cancelled"] * 8


async def test_who_sends_and_does_not_read_is_dropped(gateway: GatewayProcess) -> None:
    async with socket_open(gateway, max_queue=1) as client:
        client.connection.transport.pause_reading()
        with suppress(ConnectionClosed, TimeoutError):
            async with asyncio.timeout(10):
                while True:
                    await client.connection.send('{"type":"nothing"}' * 10)
        client.connection.transport.abort()
    await gateway.idle()


async def test_who_closes_without_reading_is_dropped_too(gateway: GatewayProcess) -> None:
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", gateway.port))
    async with socket_open(gateway, sock=raw, max_queue=1) as client:
        await client.create("a")
        submit = await placed(gateway)
        await client.receive_until("request.accepted")
        client.connection.transport.pause_reading()
        for number in range(40):
            gateway.worker.emit(submit.sid, number, 1, WORD * 100)
        await asyncio.sleep(0.1)
        before = descriptors(gateway)
        client.connection.transport.write(Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True))
        for _ in range(200):
            if descriptors(gateway) < before:
                break
            await asyncio.sleep(0.02)
        else:
            raise AssertionError("the connection is still there")
        client.connection.transport.abort()


@pytest.mark.parametrize("state", ["waiting", "placed", "streaming", "whole"])
async def test_a_cancelled_request_ends_at_once(
    gateway: GatewayProcess, client: SocketClient, state: str
) -> None:
    body = {"model": MODEL, "messages": MESSAGES, "stream": state != "whole"}
    await client.create("a", body)
    submit = await gateway.dispatcher.submitted()
    if state != "waiting":
        gateway.dispatcher.place(submit, gateway.worker)
    await client.receive_until("request.accepted")
    if state == "streaming":
        gateway.worker.emit(submit.sid, 0, 1, WORD)
        await client.receive_until("chunk")
    cancels = gateway.dispatcher.cancels if state == "waiting" else gateway.worker.cancels
    started = time.monotonic()
    await client.send(type="cancel", id="a")
    cancel = await asyncio.wait_for(cancels.get(), WAIT_S)
    assert (cancel.sid, cancel.reason) == (submit.sid, "cancelled")
    assert time.monotonic() - started < 0.05
    (told,) = await client.ended("a")
    assert told.last == {"type": "cancelled", "id": "a"}
    await client.send(type="cancel", id="a")  # it is over: nothing happens
    assert await client.is_open()
    await gateway.idle_requests()
    assert gateway.usage_of(submit.request_id).outcome == "cancelled"


async def test_created_and_cancelled_in_one_breath_is_confirmed(client: SocketClient) -> None:
    for number in range(20):
        await client.create(f"r{number}")
        await client.send(type="cancel", id=f"r{number}")
    for told in await client.ended(*(f"r{number}" for number in range(20))):
        assert told.last["type"] == "cancelled"


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_a_client_that_leaves_leaves_nothing_behind(gateway: GatewayProcess, how: str) -> None:
    async with socket_open(gateway) as client:
        for number in range(3):
            await client.create(f"r{number}", window=1)
        submits = [await gateway.dispatcher.submitted() for _ in range(3)]
        for submit in submits[1:]:
            gateway.dispatcher.place(submit, gateway.worker)
        gateway.worker.emit(submits[2].sid, 0, 1, WORD)  # one chunk is under way, more wait for credit
        gateway.worker.emit(submits[2].sid, 1, 1, WORD)
        await client.receive_until("chunk")
        body = {"model": MODEL, "prompt": "a " * 30_000, "max_tokens": 1}
        await client.create("tokenised", body, endpoint="/v1/completions")
        if how == "abort":
            client.connection.transport.abort()
        started = time.monotonic()
    cancelled = {(await asyncio.wait_for(gateway.worker.cancels.get(), WAIT_S)).sid for _ in range(2)}
    assert time.monotonic() - started < 0.1
    assert cancelled == {submit.sid for submit in submits[1:]}


async def test_silence_is_broken_by_pings(client: SocketClient) -> None:
    started = time.monotonic()
    await client.receive_until("ping")
    await client.send(type="pong")
    await client.receive_until("ping")
    assert 0.5 < time.monotonic() - started < 1.5


async def test_an_error_of_a_replica_is_an_error_frame(gateway: GatewayProcess, client: SocketClient) -> None:
    await client.create("a")
    submit = await placed(gateway)
    gateway.worker.emit(submit.sid, 0, 1, "half")
    await client.receive_until("chunk")
    gateway.worker.finish(submit.sid, "error", output=1)
    (told,) = await client.ended("a")
    assert (told.text, told.last["status"], told.last["error"]["code"]) == ("half", 500, "engine_error")
    assert told.last["final"] is True


async def test_a_gateway_that_stops_lets_requests_finish_then_ends_them_and_closes() -> None:
    limits = {**LIMITS, "drain_s": 2.0, "drain_margin_s": 1.0, "slow_reader_s": 5.0}
    async with gateway_started(limits=limits, server_arguments=SERVER, graceful_s=2) as gateway:
        await gateway.ready()
        async with socket_open(gateway) as busy, socket_open(gateway) as idle:
            for name in ("finishes", "stays", "starved"):
                await busy.create(name, window=1 if name == "starved" else None)
            submits = [await placed(gateway) for _ in range(3)]
            for number in range(2):
                gateway.worker.emit(submits[2].sid, number, 1, WORD)
            await busy.receive_until("chunk")
            gateway.process.send_signal(signal.SIGTERM)
            assert await idle.closed() == (1001, "this gateway is stopping")
            await busy.create("late")
            (late,) = await busy.ended("late")
            assert late.last["error"]["code"] == "gateway_stopping"
            gateway.worker.emit(submits[0].sid, 0, 1, WORD)
            gateway.worker.finish(submits[0].sid, "stop", output=1)
            assert (await busy.ended("finishes"))[0].last["type"] == "done"
            assert await busy.closed() == (1001, "this gateway is stopping")
            for name in ("stays", "starved"):
                assert busy.told[name].last["error"]["code"] == "gateway_stopping"
        assert await asyncio.wait_for(gateway.process.wait(), 5) == -signal.SIGTERM
        outcomes = [gateway.usage_of(submit.request_id).outcome for submit in submits]
        assert outcomes == ["completed", "error", "error"]
