"""How long a request may take: what a client may say of it, who is told, and what comes when it is over."""

import asyncio
import json

import pytest

from gpuworker.wire.messages import Ended
from tests.gateway.durable import BODY, Fleet
from tests.gateway.limit_details import limit_of
from tests.gateway.peers import WAIT_S
from tests.gateway.raw import RawConnection

pytestmark = pytest.mark.asyncio(loop_scope="package")

STREAMED = {**BODY, "stream": True}


@pytest.mark.parametrize(
    "stated",
    [
        "",
        "0",
        "0.9",
        "-1",
        "nan",
        "inf",
        "-inf",
        "1e3",
        "1_000",
        "0x10",
        "+5",
        "5 ms",
        "5,5",
        "5;6",
        "90000\r\nx-request-deadline-ms: 1500",  # twice
        "٣",
        "1" * 400,
    ],
)
async def test_a_deadline_that_is_none(fleet: Fleet, stated: str) -> None:
    response = await fleet.post(BODY, f"x-request-deadline-ms: {stated}")
    error = response.json()["error"]
    assert (response.status, error["code"]) == (400, "invalid_value")
    assert error["param"] == "x-request-deadline-ms"


@pytest.mark.parametrize(
    ("headers", "at_most_ms"),
    [
        (["x-request-deadline-ms: 1500"], 1_500),
        (["x-request-deadline-ms:  1500.5 "], 1_501),
        (["x-request-deadline-ms: 999999999999999999"], 600_000),
        (["x-request-deadline-ms: 90000", "x-stainless-read-timeout: 3"], 90_000),
        (["x-stainless-read-timeout: 3"], 3_000),
        (["x-stainless-read-timeout: 3.5"], 3_500),
        (["x-stainless-read-timeout: 0.5"], 600_000),
        (["x-stainless-read-timeout: nan"], 600_000),
        (["x-stainless-read-timeout: -3"], 600_000),
        (["x-stainless-read-timeout: 1_0"], 600_000),
        (["x-stainless-read-timeout: 3000"], 600_000),
    ],
)
async def test_the_deadline_reaches_the_worker(fleet: Fleet, headers: list[str], at_most_ms: int) -> None:
    connection = await fleet.open(BODY, *headers)
    submit = await fleet.gateways[0].dispatcher.submitted()
    assert at_most_ms - 500 < submit.deadline_ms <= at_most_ms
    connection.close()


async def test_a_read_timeout_does_not_bound_a_stream(fleet: Fleet) -> None:
    connection = await fleet.open(STREAMED, "x-stainless-read-timeout: 3")
    assert (await fleet.gateways[0].dispatcher.submitted()).deadline_ms > 590_000
    connection.close()


@pytest.mark.parametrize("by", ["worker", "dispatcher"])
async def test_a_passed_deadline_says_which_it_was(fleet: Fleet, by: str) -> None:
    gateway = fleet.gateways[0]
    connection = await fleet.open(BODY, "x-request-deadline-ms: 300")
    submit = await gateway.dispatcher.submitted()
    await asyncio.sleep(0.3)
    if by == "worker":
        gateway.dispatcher.place(submit, gateway.worker)
        gateway.worker.finish(submit.sid, "deadline", output=0)
    else:
        gateway.dispatcher.send(Ended(sid=submit.sid, code="deadline_exceeded", message="late"))
    response = await asyncio.wait_for(connection.response(), WAIT_S)
    assert (response.status, response.json()["error"]["code"]) == (504, "deadline_exceeded")
    limit = limit_of(response)
    assert limit.pop("used") >= 300
    assert limit == {
        "name": "deadline_ms",
        "scope": "request",
        "subject": submit.request_id,
        "limit": 300,
    }
    connection.close()


async def test_a_body_that_is_later_than_the_deadline_starts_nothing(fleet: Fleet) -> None:
    gateway, data = fleet.gateways[0], json.dumps(BODY).encode()
    connection = await RawConnection.open(gateway.port)
    headers = [fleet.customer.authorization, "x-request-deadline-ms: 100", f"content-length: {len(data)}"]
    connection.send("POST", "/v1/chat/completions", data[:-1], *headers)
    await asyncio.sleep(0.2)
    connection.writer.write(data[-1:])
    response = await asyncio.wait_for(connection.response(), WAIT_S)
    assert (response.status, response.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert limit_of(response)["limit"] == 100
    assert gateway.dispatcher.submits.empty()
    connection.close()


@pytest.mark.parametrize("name", ["x-request-deadline-ms", "authorization", "content-length"])
async def test_a_folded_header_is_refused(fleet: Fleet, name: str) -> None:
    """RFC 9112 §5.2: a line that begins with a blank would go on with the header before it."""
    connection = await RawConnection.open(fleet.gateways[0].port)
    head = (
        f"GET /v1/models HTTP/1.1\r\nhost: x\r\n{fleet.customer.authorization}\r\n{name}: 1\r\n 000\r\n\r\n"
    )
    connection.writer.write(head.encode())
    response = await asyncio.wait_for(connection.response(), WAIT_S)
    assert response.status in (400, 401)
    connection.close()
