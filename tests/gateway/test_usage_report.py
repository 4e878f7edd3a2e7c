"""`GET /v1/usage/{request_id}`: the ledger's own rows of one request, for its tenant alone."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from tests.gateway.durable import BODY, Fleet, gateway_added, key, paced
from tests.gateway.harness import MODEL
from tests.gateway.proxy import relayed
from tests.gateway.raw import Response, request

pytestmark = pytest.mark.asyncio(loop_scope="package")

WORDS = ["Hello", " wörld", " 你好"]
LIST = {"model": MODEL, "prompt": ["one", "three", "seventeen"], "max_tokens": 4}
NOBODYS = "018f0000-0000-7000-8000-000000000001"


async def usage(fleet: Fleet, request_id: str, *, gateway: int = 0) -> Response:
    return await fleet.get(f"/v1/usage/{request_id}", gateway=gateway)


async def ledger(fleet: Fleet, request_id: str) -> list[Any]:
    """Rows of this request and its further prompts: id, attempt, prompt and output tokens, cost, debit."""
    first = UUID(request_id)
    return await fleet.sql(
        "SELECT u.request_id, u.attempt, u.billable_prompt_tokens + u.billable_cached_tokens,"
        " u.billable_output_tokens, u.cost_micro_usd,"
        " (SELECT coalesce(sum(l.amount_micro_usd), 0) FROM billing_ledgerentry l WHERE"
        "  l.request_id = u.request_id AND l.attempt = u.attempt AND l.account LIKE 'tenant:%%')"
        " FROM billing_usageevent u WHERE u.request_id BETWEEN %s AND %s ORDER BY 1, 2",
        first,
        UUID(int=first.int + 127),
    )


def told(body: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (
            UUID(record["request_id"]),
            record["attempt"],
            record["billable_prompt_tokens"] + record["billable_cached_tokens"],
            record["billable_output_tokens"],
            record["cost_micro_usd"],
        )
        for record in body["records"]
    ]


async def agrees(fleet: Fleet, request_id: str) -> dict[str, Any]:
    """What is told on either gateway is what the ledger says."""
    rows = await ledger(fleet, request_id)
    answers = [await usage(fleet, request_id, gateway=index) for index in (0, 1)]
    assert answers[0].body == answers[1].body
    body: dict[str, Any] = answers[0].json()
    assert told(body) == [row[:5] for row in rows]
    assert (body["object"], body["request_id"], body["status"]) == ("usage", request_id, "recorded")
    assert body["prompt_tokens"] == sum(row[2] for row in rows)
    assert body["completion_tokens"] == sum(row[3] for row in rows)
    assert body["cost_micro_usd"] == sum(row[4] for row in rows) == sum(row[5] for row in rows)
    return body


@pytest.mark.parametrize("stream", [True, False])
async def test_counts_and_cost_are_the_ledgers(fleet: Fleet, *, stream: bool) -> None:
    with fleet.scripted(paced(WORDS)):
        answer = await fleet.post({**BODY, "stream": stream})
    await fleet.usage_rows(1)
    body = await agrees(fleet, answer.headers["x-request-id"])
    assert (body["prompt_tokens"], body["completion_tokens"]) == (7, 3)
    assert body["cost_micro_usd"] > 0
    (record,) = body["records"]
    assert (record["model"], record["outcome"], record["klass"]) == (MODEL, "completed", "interactive")


async def test_a_list_of_prompts_is_summed(fleet: Fleet) -> None:
    with fleet.scripted(paced(WORDS)):
        answer = await fleet.post(LIST, path="/v1/completions")
    await fleet.usage_rows(3)
    request_id = answer.headers["x-request-id"]
    body = await agrees(fleet, request_id)
    first = UUID(request_id).int
    assert [UUID(record["request_id"]).int - first for record in body["records"]] == [0, 1, 2]
    assert body["completion_tokens"] == answer.json()["usage"]["completion_tokens"] == 9
    assert body["prompt_tokens"] == answer.json()["usage"]["prompt_tokens"]


async def test_ids_beside_it_are_unknown(fleet: Fleet) -> None:
    with fleet.scripted(paced(WORDS)):
        answer = await fleet.post(BODY)
    await fleet.usage_rows(1)
    number = UUID(answer.headers["x-request-id"]).int
    for beside in (number - 127, number - 1, number + 1):
        assert (await usage(fleet, str(UUID(int=beside)))).status == 404


async def test_attempts_are_told_apart_and_the_running_one_is_in_progress(fleet: Fleet) -> None:
    with fleet.scripted(paced(WORDS[:2], reason="cancelled")):
        first = await fleet.post(BODY, key("twice"))
    assert first.status == 503
    request_id = first.headers["x-request-id"]
    await fleet.usage_rows(1)
    again = asyncio.create_task(fleet.post(BODY, key("twice")))
    gateway = fleet.gateways[0]
    submit = await gateway.dispatcher.submitted()
    assert (submit.request_id, submit.attempt) == (request_id, 2)
    meanwhile = (await usage(fleet, request_id)).json()
    assert (meanwhile["status"], [record["attempt"] for record in meanwhile["records"]]) == (
        "in_progress",
        [1],
    )
    assert meanwhile["completion_tokens"] == 2
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.emit(submit.sid, 0, 3, "all")
    gateway.worker.finish(submit.sid, "stop", output=3)
    assert (await again).status == 200
    await fleet.usage_rows(2)
    body = await agrees(fleet, request_id)
    assert [record["attempt"] for record in body["records"]] == [1, 2]
    assert (body["prompt_tokens"], body["completion_tokens"]) == (7, 3)  # the prompt once, the output once


async def test_what_runs_is_in_progress_for_its_tenant_alone(fleet: Fleet) -> None:
    asked = asyncio.create_task(fleet.post(BODY))
    gateway = fleet.gateways[0]
    submit = await gateway.dispatcher.submitted()
    body = (await usage(fleet, submit.request_id)).json()
    assert body == {
        "object": "usage",
        "request_id": submit.request_id,
        "status": "in_progress",
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "cost_micro_usd": 0,
        "records": [],
    }
    stranger = fleet.of(fleet.others.pop())
    unknown = await unknown_body(stranger)
    running = await usage(stranger, submit.request_id)
    assert (running.status, running.body) == (
        404,
        unknown.replace(NOBODYS.encode(), submit.request_id.encode()),
    )
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.finish(submit.sid, "stop", output=0)
    assert (await asked).status == 200
    await fleet.usage_rows(1)
    recorded = await usage(stranger, submit.request_id)
    assert (recorded.status, recorded.body) == (404, running.body)


async def unknown_body(fleet: Fleet) -> bytes:
    response = await usage(fleet, NOBODYS)
    assert (response.status, response.json()["error"]["code"]) == (404, "request_not_found")
    return response.body


async def test_how_an_id_may_be_written(fleet: Fleet) -> None:
    with fleet.scripted(paced(WORDS)):
        answer = await fleet.post(BODY)
    await fleet.usage_rows(1)
    request_id = answer.headers["x-request-id"]
    whole = (await usage(fleet, request_id)).body
    bare = request_id.replace("-", "")
    for name in (request_id.upper(), bare, answer.json()["id"].removeprefix("chatcmpl-")):
        assert (await usage(fleet, name)).body == whole
    for name in (
        f"{{{request_id}}}",
        f"urn:uuid:{request_id}",
        f"{request_id}/",
        f"{request_id}/x",
        f"{request_id}x",
        f"{request_id}%00",
        f"{request_id}%0a",
        f"%20{request_id}",
        f"{request_id[:-1]}",
        f"{bare[:4]}-{bare[4:]}",
        "0x" + bare[2:],
        "+" + bare[1:],
        bare[:8] + "_" + bare[9:],
        "%EF%BC%91" * 32,  # digits of another script
        "%ff%fe",
        "x" * 4000,
        "null",
    ):
        refused = await usage(fleet, name)
        assert (refused.status, refused.json()["error"]["code"]) == (404, "request_not_found"), name


async def test_methods(fleet: Fleet) -> None:
    with fleet.scripted(paced(WORDS)):
        answer = await fleet.post(BODY)
    await fleet.usage_rows(1)
    path = f"/v1/usage/{answer.headers['x-request-id']}"
    whole = await fleet.get(path)
    connection = await fleet.open({}, path=path, method="HEAD")
    head = await connection.head()
    assert (head.status, int(head.headers["content-length"])) == (200, len(whole.body))
    connection.send("GET", path, b"", fleet.customer.authorization)  # nothing but the head was sent before
    assert (await connection.response()).body == whole.body
    connection.close()
    for method in ("POST", "DELETE", "PUT"):
        refused = await fleet.get(path, method=method)
        assert (refused.status, refused.headers["allow"]) == (405, "GET")
    assert (await fleet.get("/v1/usage/")).status == 404
    assert (await request(fleet.gateways[0].port, "GET", path)).status == 401


async def test_without_postgres_it_is_unavailable(fleet: Fleet) -> None:
    async with (
        relayed(fleet.database.gateway_url) as relay,
        gateway_added(fleet, database_url=relay.url) as added,
    ):
        await relay.cut()
        response = await usage(added, NOBODYS)
        error = response.json()["error"]
        assert (response.status, error["code"], error["limit"]["name"]) == (
            503,
            "overloaded",
            "usage_records",
        )
        assert (response.headers["retry-after"], response.headers["retry-after-ms"]) == ("5", "5000")
        await relay.start()
        assert (await usage(added, NOBODYS)).status == 404
        await relay.cut()
        await added.gateways[0].idle()
