"""The client leaves: while queued, prefilling, streaming, and waiting for a whole answer."""

import asyncio
import json
from typing import Any

import pytest

from gpuworker.wire.messages import Submit
from tests.gateway.harness import MODEL, GatewayProcess
from tests.gateway.peers import WAIT_S
from tests.gateway.raw import RawConnection

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def begin(gateway: GatewayProcess, **fields: Any) -> tuple[RawConnection, Submit]:
    """A request that has reached the dispatcher."""
    connection = await RawConnection.open(gateway.port)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}
    connection.send("POST", "/v1/chat/completions", json.dumps(body).encode(), gateway.authorization())
    return connection, await gateway.dispatcher.submitted()


async def cancelled(gateway: GatewayProcess, submit: Submit, *, on_worker: bool) -> None:
    peers = [gateway.dispatcher, *([gateway.worker] if on_worker else [])]
    for peer in peers:
        cancel = await asyncio.wait_for(peer.cancels.get(), WAIT_S)
        assert (cancel.sid, cancel.reason) == (submit.sid, "cancelled")


@pytest.mark.parametrize("stream", [True, False])
async def test_while_queued(gateway: GatewayProcess, stream: bool) -> None:
    connection, submit = await begin(gateway, stream=stream)
    connection.close()
    await cancelled(gateway, submit, on_worker=False)
    await gateway.idle()
    record = gateway.usage_of(submit.request_id)
    assert (record.outcome, record.worker) == ("cancelled", "")
    assert (record.prompt_tokens, record.cached_tokens, record.output_tokens) == (0, 0, 0)


async def test_while_queued_and_no_dispatcher_is_there(gateway: GatewayProcess) -> None:
    connection, submit = await begin(gateway)
    await gateway.dispatcher.stop()
    connection.close()
    await gateway.dispatcher.start()
    again = await gateway.dispatcher.submitted()  # or the new one would have nothing to cancel
    assert again.sid == submit.sid
    await cancelled(gateway, submit, on_worker=False)
    await gateway.idle()
    assert gateway.usage_of(submit.request_id).outcome == "cancelled"


@pytest.mark.parametrize("stream", [True, False])
async def test_while_prefilling(gateway: GatewayProcess, stream: bool) -> None:
    connection, submit = await begin(gateway, stream=stream)
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.counts[submit.sid] = (5, 0)
    connection.close()
    await cancelled(gateway, submit, on_worker=True)
    await gateway.idle()
    record = gateway.usage_of(submit.request_id)
    assert (record.outcome, record.prompt_tokens, record.output_tokens) == ("cancelled", 5, 0)
    assert record.worker_incarnation == gateway.worker.incarnation


@pytest.mark.parametrize("stream", [True, False])
async def test_while_generating(gateway: GatewayProcess, stream: bool) -> None:
    connection, submit = await begin(gateway, stream=stream)
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.emit(submit.sid, 0, 1, "one")
    if stream:
        await connection.head()
        assert b'"content":"one"' in await connection.chunk()
    gateway.worker.emit(submit.sid, 1, 2, "two")
    gateway.worker.counts[submit.sid] = (7, 5)  # two more were computed before the cancel arrived
    connection.close()
    await cancelled(gateway, submit, on_worker=True)
    await gateway.idle()
    record = gateway.usage_of(submit.request_id)
    assert (record.outcome, record.prompt_tokens, record.output_tokens) == ("cancelled", 7, 5)


async def test_cancel_that_meets_the_end_bills_the_end(gateway: GatewayProcess) -> None:
    gateway.worker.answers_cancels = False
    connection, submit = await begin(gateway, stream=True)
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.emit(submit.sid, 0, 1, "one")
    await connection.head()
    connection.close()
    await cancelled(gateway, submit, on_worker=True)
    gateway.worker.finish(submit.sid, "stop", output=1)
    await gateway.idle()
    record = gateway.usage_of(submit.request_id)
    assert (record.outcome, record.output_tokens) == ("completed", 1)


async def test_a_silent_worker_does_not_hold_a_cancelled_request(gateway: GatewayProcess) -> None:
    gateway.worker.answers_cancels = False
    connection, submit = await begin(gateway, stream=True)
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.emit(submit.sid, 0, 3, "one")
    await connection.head()
    connection.close()
    await gateway.idle()
    record = gateway.usage_of(submit.request_id)
    assert (record.outcome, record.output_tokens) == ("cancelled", 3)


async def test_placed_after_the_cancel_is_cancelled_on_the_worker_too(gateway: GatewayProcess) -> None:
    connection, submit = await begin(gateway, stream=True)
    gateway.dispatcher.placed.add(submit.sid)  # the dispatcher has just placed it: no Ended from it
    connection.close()
    await cancelled(gateway, submit, on_worker=False)
    gateway.dispatcher.place(submit, gateway.worker)
    cancel = await asyncio.wait_for(gateway.worker.cancels.get(), WAIT_S)
    assert cancel.sid == submit.sid
    await gateway.idle()
    assert gateway.usage_of(submit.request_id).outcome == "cancelled"


async def test_many_clients_leave_at_once(gateway: GatewayProcess) -> None:
    before = len(gateway.usage())
    opened = [await begin(gateway, stream=index % 2 == 0) for index in range(60)]
    for index, (_, submit) in enumerate(opened):
        if index % 3:
            gateway.dispatcher.place(submit, gateway.worker)
        if index % 3 == 2:
            gateway.worker.emit(submit.sid, 0, 1, "x")
    for connection, _ in opened:
        connection.close()
    await gateway.idle()
    records = gateway.usage()[before:]
    assert len(records) == len(opened)
    assert {record.request_id for record in records} == {submit.request_id for _, submit in opened}
    assert {record.outcome for record in records} == {"cancelled"}
