"""How the front door starts and stops under each server."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.conformance.deployment import Deployment
from tests.conformance.fronts import Front, front_open
from tests.conformance.servers import SERVERS, Server
from tests.e2e.observe import usage_row
from tests.gateway.harness import MODEL
from tests.gateway.peers import Dispatcher, socket_address
from tests.gateway.raw import RawConnection, request

pytestmark = pytest.mark.asyncio(loop_scope="package")
each_server = pytest.mark.parametrize("server", SERVERS, ids=[server.name for server in SERVERS])


@each_server
async def test_starts_with_the_server_or_with_the_first_request(
    deployment: Deployment, server: Server
) -> None:
    dispatcher = Dispatcher(socket_address(deployment.folder, f"start-{server.name}"))
    await dispatcher.start()
    try:
        with deployment.gateway(server, dispatcher.address) as gateway:
            if server.has_lifespan:
                await asyncio.wait_for(dispatcher.hello, 10)
                await asyncio.to_thread(gateway.listening_wait)
            else:
                await asyncio.to_thread(gateway.listening_wait)
                assert not dispatcher.hello.done()
                await request(gateway.port, "GET", "/healthz")
                await asyncio.wait_for(dispatcher.hello, 10)
            await request(gateway.port, "GET", "/healthz")
            gateway.process.send_signal(signal.SIGTERM)
            ended = await asyncio.to_thread(gateway.process.wait, 5)
            assert ended in (0, -signal.SIGTERM)  # uvicorn ends itself with the signal, once it has stopped
    finally:
        await dispatcher.stop()


async def _open_stream(front: Front) -> tuple[RawConnection, int, str]:
    body = {"model": MODEL, "prompt": "count", "max_tokens": 400, "stream": True}
    connection = await RawConnection.open(front.gateway.port)
    connection.send(
        "POST", "/v1/completions", json.dumps(body).encode(), f"authorization: Bearer {front.key}"
    )
    submit = await front.dispatcher.submitted()
    front.dispatcher.place(submit, front.worker)
    front.worker.emit(submit.sid, 0, 1, "one")
    await connection.head()
    assert b"one" in await connection.chunk()
    return connection, submit.sid, submit.request_id


@pytest_asyncio.fixture(loop_scope="package")
async def stopping(deployment: Deployment, server: Server) -> AsyncIterator[Front]:
    async with front_open(deployment, server, name=f"stopping-{server.name}") as front:
        yield front


@each_server
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
async def test_a_stop_lets_a_stream_finish_or_bills_what_it_cut(
    stopping: Front, server: Server, number: signal.Signals
) -> None:
    connection, sid, request_id = await _open_stream(stopping)
    stopping.gateway.process.send_signal(number)
    await asyncio.sleep(0.5)
    if server.drains:
        stopping.worker.emit(sid, 1, 1, " two")
        stopping.worker.finish(sid, "stop", output=2)
        rest = b"".join([chunk async for chunk in _chunks(connection)])
        assert b" two" in rest
        assert rest.endswith(b"data: [DONE]\n\n")
    else:
        await asyncio.wait_for(connection.closed(), 10)
    await asyncio.to_thread(stopping.gateway.process.wait, 15)
    outcome, output_tokens = await _recorded(stopping, request_id)
    assert outcome == ("completed" if server.drains else "cancelled")
    assert output_tokens == (2 if server.drains else 1)


async def _recorded(front: Front, request_id: str) -> tuple[str, int]:
    """In the ledger, or on disk for the next start to deliver."""
    for record in front.gateway.spooled():
        if record.request_id == request_id:
            return record.outcome, record.output_tokens
    row = await usage_row(front.deployment.database.operator_url, request_id)
    return row["outcome"], row["output_tokens"]


async def _chunks(connection: RawConnection) -> AsyncIterator[bytes]:
    while chunk := await asyncio.wait_for(connection.chunk(), 10):
        yield chunk
