"""Waits and buffers are bounded: slow clients, silence behind the gateway, deadlines, a full spool."""

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gpuworker.wire.messages import Submit
from tests.gateway.harness import MODEL, QUICK, GatewayProcess, gateway_started
from tests.gateway.peers import WAIT_S, echo
from tests.gateway.raw import RawConnection, request

pytestmark = pytest.mark.asyncio(loop_scope="package")

CHAT = "/v1/chat/completions"
LIMITS = {
    **QUICK,
    "body_timeout_s": 0.5,
    "keepalive_s": 0.4,
    "slow_reader_s": 1.0,
    "final_write_s": 0.2,
    "deadline_grace_s": 0.2,
    "max_open_requests": 20,
    "dispatcher_grace_s": 0.5,
}
KIB = 1024


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def tight_gateway() -> AsyncIterator[GatewayProcess]:
    async with gateway_started(limits=LIMITS) as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="package")
async def tight(tight_gateway: GatewayProcess) -> AsyncIterator[GatewayProcess]:
    tight_gateway.peers_reset()
    yield tight_gateway
    await tight_gateway.idle()


def body(**fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


async def begin(gateway: GatewayProcess, *headers: str, **fields: Any) -> tuple[RawConnection, Submit]:
    connection = await RawConnection.open(gateway.port)
    connection.send("POST", CHAT, body(**fields), gateway.authorization(), *headers)
    return connection, await gateway.dispatcher.submitted()


async def test_a_body_that_does_not_arrive(tight: GatewayProcess) -> None:
    connection = await RawConnection.open(tight.port)
    connection.send("POST", CHAT, b"{", "content-length: 100", tight.authorization())
    response = await asyncio.wait_for(connection.response(), WAIT_S)
    assert (response.status, response.json()["error"]["code"]) == (408, "request_timeout")
    await asyncio.wait_for(connection.closed(), WAIT_S)
    connection.close()


@pytest.mark.parametrize("start", [b"", b"GET /healthz HTT", b"GET /healthz HTTP/1.1\r\nhost: x\r\nslow: "])
async def test_headers_that_do_not_arrive(tight: GatewayProcess, start: bytes) -> None:
    connection = await RawConnection.open(tight.port)
    connection.writer.write(start)
    await asyncio.wait_for(connection.closed(), 5)
    connection.close()


async def test_keep_alive_comments_while_nothing_comes(tight: GatewayProcess) -> None:
    connection, submit = await begin(tight, stream=True)
    assert (await asyncio.wait_for(connection.head(), 5)).status == 200
    assert await connection.chunk() == b": ping\n"
    assert await connection.chunk() == b": ping\n"
    tight.dispatcher.place(submit, tight.worker)
    tight.worker.emit(submit.sid, 0, 1, "one")
    first = await connection.chunk()
    assert first.startswith(b"data: ")
    assert first.index(b'"role":"assistant"') < first.index(b'"content":"one"')
    tight.worker.finish(submit.sid, "stop", output=1)
    while chunk := await connection.chunk():
        last = chunk
    assert last.endswith(b"data: [DONE]\n\n")
    connection.close()


async def test_an_error_after_a_keep_alive_is_an_event(tight: GatewayProcess) -> None:
    connection, submit = await begin(tight, stream=True)
    await connection.head()
    assert await connection.chunk() == b": ping\n"
    tight.dispatcher.place(submit, tight.worker)
    tight.worker.finish(submit.sid, "error", output=0)
    while not (chunk := await connection.chunk()).startswith(b"event: error\n"):
        assert chunk == b": ping\n"
    assert await connection.chunk() == b""
    connection.close()


async def slow_reader(port: int, key: str) -> socket.socket:
    """A client with a small receive buffer that sends its request and then reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", port))
    data = body(stream=True)
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{key}\r\ncontent-length: {len(data)}\r\n\r\n".encode()
    await loop.sock_sendall(client, head + data)
    return client


async def test_a_client_that_does_not_read_is_cut(tight: GatewayProcess) -> None:
    cut_before = await tight.metric("slow_readers_cut_total")
    client = await slow_reader(tight.port, tight.authorization())
    submit = await tight.dispatcher.submitted()
    tight.dispatcher.place(submit, tight.worker)
    sent = 0

    async def feed() -> None:
        nonlocal sent
        while tight.worker.cancels.empty():  # far more than every buffer on the way
            tight.worker.emit(submit.sid, sent, 1, "x" * 16 * KIB)
            sent += 1
            await asyncio.sleep(0.01)

    await asyncio.wait_for(feed(), 20)
    cancel = tight.worker.cancels.get_nowait()
    assert (cancel.sid, cancel.reason) == (submit.sid, "cancelled")
    await tight.idle()
    assert await tight.metric("slow_readers_cut_total") == cut_before + 1
    record = tight.usage_of(submit.request_id)
    assert (record.outcome, record.output_tokens) == ("cancelled", sent)
    await no_connection_is_held(tight.port)
    client.close()


def established(port: int) -> int:
    """TCP connections whose local end is this port, from the kernel's table."""
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(fields[1].endswith(f":{port:04X}") and fields[3] == "01" for fields in sockets)


async def no_connection_is_held(port: int) -> None:
    """The server side is closed although its peer has read nothing yet."""
    for _ in range(100):
        if not established(port):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the connection is still there")


async def test_what_the_kernel_takes_for_a_client_that_does_not_read_is_little(tight: GatewayProcess) -> None:
    """1.25 MiB: more than the send buffer and the bound on unread events, less than a kernel would take."""
    client = await slow_reader(tight.port, tight.authorization())
    submit = await tight.dispatcher.submitted()
    tight.dispatcher.place(submit, tight.worker)
    for start in range(80):
        tight.worker.emit(submit.sid, start, 1, "x" * 16 * KIB)
        await asyncio.sleep(0.005)
    cancel = await asyncio.wait_for(tight.worker.cancels.get(), 5)
    assert (cancel.sid, cancel.reason) == (submit.sid, "cancelled")
    await tight.idle()
    client.close()


async def test_a_finished_stream_does_not_wait_for_its_reader_for_ever() -> None:
    roomy = {"max_pending_bytes": 64 * KIB * KIB}
    async with gateway_started(limits={**LIMITS, **roomy}) as gateway:
        client = await slow_reader(gateway.port, gateway.authorization())
        submit = await gateway.dispatcher.submitted()
        gateway.dispatcher.place(submit, gateway.worker)
        for start in range(40):
            gateway.worker.emit(submit.sid, start, 1, "x" * 200 * KIB)
        gateway.worker.finish(submit.sid, "stop", output=40)
        await gateway.idle()
        await no_connection_is_held(gateway.port)
        record = gateway.usage_of(submit.request_id)
        assert (record.outcome, record.output_tokens) == ("completed", 40)
        client.close()


async def test_a_slow_reader_does_not_hold_up_others(tight: GatewayProcess) -> None:
    client = await slow_reader(tight.port, tight.authorization())
    stuck = await tight.dispatcher.submitted()
    tight.dispatcher.place(stuck, tight.worker)
    for start in range(8):
        tight.worker.emit(stuck.sid, start, 1, "x" * 64 * KIB)
    with tight.dispatcher.scripted(echo(tight.dispatcher)):
        response = await asyncio.wait_for(tight.post(CHAT, body()), 2)
    assert response.status == 200
    client.close()
    await tight.idle()


async def test_the_clients_patience_is_the_deadline_of_a_whole_answer(tight: GatewayProcess) -> None:
    connection, submit = await begin(tight, "x-stainless-read-timeout: 1")
    assert 0 < submit.deadline_ms <= 1000
    response = await asyncio.wait_for(connection.response(), WAIT_S)
    assert (response.status, response.json()["error"]["code"]) == (504, "deadline_exceeded")
    cancel = await asyncio.wait_for(tight.dispatcher.cancels.get(), WAIT_S)
    assert cancel.reason == "deadline"
    assert tight.usage_of(submit.request_id).outcome == "deadline"
    connection.close()


async def test_defaults_that_are_submitted(tight: GatewayProcess) -> None:
    connection, submit = await begin(tight, temperature=0, top_k=-1, seed=-5, stop="x", service_tier="flex")
    assert submit.max_tokens == 512 - len(submit.prompt) // 4
    assert submit.stop_ids == [2, 0]
    assert submit.stop == ["x"]
    assert submit.klass == "batch"
    assert (submit.sampling.temperature, submit.sampling.top_k) == (0.0, 0)
    assert submit.sampling.seed >= 0
    assert submit.attempt == 1
    connection.close()
    other, second = await begin(tight)
    assert second.sampling.seed != submit.sampling.seed
    other.close()


async def test_too_many_requests_at_once(tight: GatewayProcess) -> None:
    opened = [await begin(tight) for _ in range(20)]
    response = await tight.post(CHAT, body())
    assert (response.status, response.json()["error"]["code"]) == (503, "overloaded")
    for connection, _ in opened:
        connection.close()
    await tight.idle()


async def test_a_dispatcher_that_stays_away_ends_what_waits_for_it() -> None:
    async with gateway_started(limits=LIMITS) as gateway:
        connection, submit = await begin(gateway)
        await gateway.dispatcher.stop()
        response = await asyncio.wait_for(connection.response(), WAIT_S)
        assert (response.status, response.json()["error"]["code"]) == (503, "overloaded")
        assert gateway.usage_of(submit.request_id).outcome == "error"
        connection.close()


async def test_a_worker_whose_end_was_missed_is_forgotten() -> None:
    async with gateway_started(limits=LIMITS) as gateway:
        await gateway.dispatcher.stop()
        await gateway.worker.stop()
        gateway.dispatcher.workers.clear()
        await gateway.dispatcher.start()
        await asyncio.wait_for(gateway.dispatcher.hello, WAIT_S)
        await gateway.idle()
        assert (await request(gateway.port, "GET", "/readyz")).json()["missing"] == ["worker"]
        for _ in range(100):
            if await gateway.metric("replicas_known") == 0:
                return
            await asyncio.sleep(0.05)
        raise AssertionError("the replica is still known")


async def test_a_spool_that_is_nearly_full_admits_nothing() -> None:
    async with gateway_started(limits={**LIMITS, "spool_quota_bytes": 8000}) as gateway:
        with gateway.dispatcher.scripted(echo(gateway.dispatcher)):
            served = 0
            while (response := await gateway.post(CHAT, body())).status == 200:
                served += 1
        assert served > 5
        assert len(gateway.usage()) == served
        assert (response.status, response.json()["error"]["code"]) == (503, "overloaded")
        assert "spool" in (await request(gateway.port, "GET", "/readyz")).json()["missing"]


async def test_a_record_that_does_not_fit_is_no_completed_stream() -> None:
    async with gateway_started(limits={**LIMITS, "spool_quota_bytes": 100}) as gateway:
        with gateway.dispatcher.scripted(echo(gateway.dispatcher)):
            stream = await gateway.post(CHAT, body(stream=True))
            whole = await gateway.post(CHAT, body())
        assert b'"code":"usage_not_recorded"' in stream.body
        assert b"[DONE]" not in stream.body
        assert (whole.status, whole.json()["error"]["code"]) == (500, "usage_not_recorded")


async def test_sigterm_lets_streams_finish() -> None:
    async with gateway_started(limits=LIMITS) as gateway:
        connection, submit = await begin(gateway, stream=True)
        gateway.dispatcher.place(submit, gateway.worker)
        gateway.worker.emit(submit.sid, 0, 1, "before")
        await connection.head()
        await connection.chunk()
        gateway.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        gateway.worker.emit(submit.sid, 1, 1, "after")
        assert b'"after"' in await connection.chunk()
        gateway.worker.finish(submit.sid, "stop", output=2)
        assert b"[DONE]" in await connection.chunk()
        await asyncio.wait_for(gateway.process.wait(), 10)
        assert gateway.usage_of(submit.request_id).outcome == "completed"
        connection.close()


@pytest.mark.parametrize("answers", [True, False], ids=["settled", "silent"])
async def test_what_outlives_the_drain_ends_with_an_error_and_is_billed(answers: bool) -> None:
    """The worker's last word may be missing: then what arrived counts."""
    limits = {**QUICK, "drain_s": 3.0, "settle_s": 5.0}
    async with gateway_started(limits=limits, graceful_s=3) as gateway:
        gateway.worker.answers_cancels = answers
        left, forsaken = await begin(gateway)  # waits for its counts already when the streams are ended
        gateway.dispatcher.place(forsaken, gateway.worker)
        gateway.worker.emit(forsaken.sid, 0, 1, "one")
        streaming, streamed = await begin(gateway, stream=True)
        waiting, waited = await begin(gateway, stream=True)
        whole, unstreamed = await begin(gateway)
        for submit in (streamed, unstreamed):
            gateway.dispatcher.place(submit, gateway.worker)
            gateway.worker.emit(submit.sid, 0, 2, "before")
        await streaming.head()
        assert b"before" in await streaming.chunk()
        left.close()
        await asyncio.wait_for(gateway.dispatcher.cancels.get(), WAIT_S)
        gateway.process.send_signal(signal.SIGTERM)
        signalled_at = asyncio.get_running_loop().time()
        last = await asyncio.wait_for(streaming.chunk(), WAIT_S)
        assert b"event: error" in last
        assert b'"code":"gateway_stopping"' in last
        assert await streaming.chunk() == b""
        for connection in (waiting, whole):
            response = await asyncio.wait_for(connection.response(), WAIT_S)
            assert (response.status, response.json()["error"]["code"]) == (503, "gateway_stopping")
            assert response.headers["retry-after"] == "1"
            connection.close()
        streaming.close()
        await asyncio.wait_for(gateway.process.wait(), WAIT_S)
        assert asyncio.get_running_loop().time() - signalled_at < 3.0
        usage = {record.request_id: (record.outcome, record.output_tokens) for record in gateway.usage()}
        assert usage == {
            forsaken.request_id: ("cancelled", 1),
            streamed.request_id: ("error", 2),
            waited.request_id: ("error", 0),
            unstreamed.request_id: ("error", 0),
        }


async def test_usage_is_recorded_when_the_server_cancels_first() -> None:
    """A drain limit shorter than the gateway was told: no error event, but the row is written."""
    async with gateway_started(limits=LIMITS, graceful_s=1) as gateway:
        gateway.worker.answers_cancels = False
        connection, submit = await begin(gateway, stream=True)
        gateway.dispatcher.place(submit, gateway.worker)
        gateway.worker.emit(submit.sid, 0, 2, "before")
        await connection.head()
        gateway.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(gateway.process.wait(), WAIT_S)
        assert gateway.usage_of(submit.request_id).output_tokens == 2
        connection.close()
