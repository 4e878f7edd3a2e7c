"""What a key, a tenant and a model bound: judged before anything expensive, explained the same everywhere."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import ApiError, LimitDetail
from gpuworker.wire.messages import Ended, Submit
from tests.gateway.durable import BODY, MESSAGES, Fleet, key, paced
from tests.gateway.harness import MODEL, GatewayProcess
from tests.gateway.limit_details import limit_of, retry_ms_of
from tests.gateway.peers import WAIT_S
from tests.gateway.raw import RawConnection, Response

pytestmark = pytest.mark.asyncio(loop_scope="package")

STREAMED = {**BODY, "stream": True}
ENDPOINTS: list[tuple[str, str, dict[str, Any]]] = [
    ("/v1/chat/completions", "max_completion_tokens", {"model": MODEL, "messages": MESSAGES}),
    ("/v1/completions", "max_tokens", {"model": MODEL, "prompt": "hello"}),
    ("/v1/responses", "max_output_tokens", {"model": MODEL, "input": "hello"}),
    ("/v1/messages", "max_tokens", {"model": MODEL, "messages": MESSAGES}),
]

NUMBERS = st.integers(-(2**53), 2**53)


async def key_bound(fleet: Fleet, count: int) -> None:
    query = "UPDATE tenants_apikey SET max_open_requests = %s WHERE public_id = %s"
    await fleet.apply(query, count, fleet.customer.public_id)


async def begin(fleet: Fleet, body: dict[str, Any] = STREAMED, *headers: str) -> tuple[RawConnection, Submit]:
    """A request whose first token has arrived at its gateway."""
    gateway = fleet.gateways[0]
    connection = await fleet.open(body, *headers)
    submit = await gateway.dispatcher.submitted()
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.emit(submit.sid, 0, 1, "one")
    if body["stream"]:
        await connection.head()
        await connection.chunk()
    return connection, submit


async def refused(fleet: Fleet, *, held: int) -> None:
    response = await fleet.post(BODY)
    assert (response.status, response.json()["error"]["code"]) == (429, "concurrent_requests")
    assert limit_of(response) == {
        "name": "open_requests",
        "scope": "key",
        "subject": fleet.customer.public_id,
        "held": held,
        "limit": held,
    }
    assert retry_ms_of(response) == 1000


# -- requests open at a time --------------------------------------------------------------------------------

Ending = Callable[[Fleet, RawConnection, Submit], Any]


async def completes(fleet: Fleet, connection: RawConnection, submit: Submit) -> None:
    fleet.gateways[0].worker.finish(submit.sid, "stop", output=1)


async def fails(fleet: Fleet, connection: RawConnection, submit: Submit) -> None:
    fleet.gateways[0].worker.finish(submit.sid, "error", output=1)


async def leaves(fleet: Fleet, connection: RawConnection, submit: Submit) -> None:
    connection.close()


async def is_cancelled(fleet: Fleet, connection: RawConnection, submit: Submit) -> None:
    response = await fleet.get(f"/v1/streams/{submit.request_id}", method="DELETE")
    assert response.status == 202


async def is_lost(fleet: Fleet, connection: RawConnection, submit: Submit) -> None:
    wire = fleet.gateways[0].worker.connection
    assert wire is not None
    wire.abort("cut")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("ending", [completes, fails, leaves, is_cancelled, is_lost])
async def test_every_end_frees_what_the_key_held(fleet: Fleet, *, ending: Ending, stream: bool) -> None:
    await key_bound(fleet, 2)
    gateway = fleet.gateways[0]
    opened = [await begin(fleet, {**BODY, "stream": stream}) for _ in range(2)]
    await refused(fleet, held=2)
    for connection, submit in opened:
        await ending(fleet, connection, submit)
    for connection, _ in opened:
        if ending is not leaves:
            await asyncio.wait_for(rest(connection, is_begun=stream), WAIT_S)
    await gateway.idle()
    await gateway.ready()
    for connection, _ in [await begin(fleet) for _ in range(2)]:  # neither fewer nor more than before
        assert not connection.writer.is_closing()
    await refused(fleet, held=2)


async def rest(connection: RawConnection, *, is_begun: bool) -> None:
    if not is_begun:
        await connection.response()
        return
    while await connection.chunk():
        pass


async def test_of_many_at_once_as_many_are_served_as_may_be(fleet: Fleet) -> None:
    await key_bound(fleet, 5)
    gateway = fleet.gateways[0]
    asked = [asyncio.create_task(fleet.post(BODY)) for _ in range(30)]
    done: set[asyncio.Task[Response]] = set()
    while len(done) < 25:
        done, _ = await asyncio.wait(asked, return_when="FIRST_COMPLETED", timeout=WAIT_S)
        await asyncio.sleep(0.01)
    assert {task.result().status for task in done} == {429}
    assert gateway.dispatcher.submits.qsize() == 5
    for _ in range(5):
        submit = await gateway.dispatcher.submitted()
        gateway.dispatcher.place(submit, gateway.worker)
        gateway.worker.finish(submit.sid, "stop", output=0)
    answers = await asyncio.gather(*asked)
    assert sorted(answer.status for answer in answers) == [200] * 5 + [429] * 25


async def test_a_generation_that_outlives_its_client_holds_its_slot(fleet: Fleet) -> None:
    """Or a key would have any number of them running. Its own client may always come back for it."""
    await key_bound(fleet, 1)
    connection, submit = await begin(fleet, STREAMED, "x-stream-resume: 1")
    connection.close()
    for _ in range(3):
        await asyncio.sleep(0.1)
        await refused(fleet, held=1)
    path = f"/v1/streams/{submit.request_id}"
    resumed = await fleet.open({}, path=path, method="GET")
    assert (await resumed.head()).status == 200
    resumed.close()
    assert (await fleet.get(path, method="DELETE")).status == 202
    await fleet.usage_rows(1)
    with fleet.scripted(paced(["x"])):
        assert (await fleet.post(BODY)).status == 200


async def test_the_bound_is_of_the_key_alone(fleet: Fleet) -> None:
    await key_bound(fleet, 1)
    connection, _ = await begin(fleet)
    await refused(fleet, held=1)
    other = await fleet.gateways[0].post(
        "/v1/messages/count_tokens",
        {"model": MODEL, "messages": MESSAGES},
        f"authorization: Bearer {fleet.customer.other_key}",
    )
    assert other.status == 200
    connection.close()


async def test_a_refused_request_costs_no_body(fleet: Fleet) -> None:
    """It is answered although its body never arrives."""
    await key_bound(fleet, 1)
    held, _ = await begin(fleet)
    connection = await RawConnection.open(fleet.gateways[0].port)
    connection.send("POST", "/v1/completions", b"{", "content-length: 1000", fleet.customer.authorization)
    response = await asyncio.wait_for(connection.response(), 2)
    assert response.status == 429
    held.close()
    connection.close()


# -- sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "name", "body"), ENDPOINTS)
async def test_what_is_too_large_or_too_deep(
    fleet: Fleet, path: str, name: str, body: dict[str, Any]
) -> None:
    gateway, authorization = fleet.gateways[0], fleet.customer.authorization
    deep = json.dumps(body)[:-1].encode() + b',"metadata":' + b"[" * 9999 + b"]" * 9999 + b"}"
    response = await gateway.post(path, deep, authorization)
    assert response.status == 400
    connection = await RawConnection.open(gateway.port)
    connection.send("POST", path, b"{", f"content-length: {(4 << 20) + 1}", authorization)
    assert (await asyncio.wait_for(connection.response(), WAIT_S)).status == 413
    connection.close()
    assert (await gateway.post(path, {**body, "padding": "x" * (4 << 20)}, authorization)).status == 413


@pytest.mark.parametrize(("path", "name", "body"), ENDPOINTS)
async def test_too_many_messages(fleet: Fleet, path: str, name: str, body: dict[str, Any]) -> None:
    if path == "/v1/completions":
        return
    param = "input" if path == "/v1/responses" else "messages"
    many = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}] * 16_385
    response = await fleet.post({**body, name: 4, param: many}, path=path)
    assert response.status == 400
    assert "32768" in response.body.decode()


@pytest.mark.parametrize("stream", [True, False])
async def test_too_many_log_probabilities(fleet: Fleet, *, stream: bool) -> None:
    wanted = {"model": MODEL, "prompt": "hello", "max_tokens": 400, "n": 64, "stream": stream}
    response = await fleet.post({**wanted, "logprobs": 20}, path="/v1/completions")
    assert (response.status, response.json()["error"]["param"]) == (400, "logprobs")
    assert "537600" in response.json()["error"]["message"]


# -- output -------------------------------------------------------------------------------------------------


async def tenant_bound(fleet: Fleet, count: int) -> dict[str, Any]:
    await fleet.apply(
        "UPDATE tenants_tenant SET max_output_tokens = %s, name = %s WHERE id = %s",
        count,
        'Zoë & "Söhne" 你好 \u200f\x7f',
        fleet.customer.tenant_id,
    )
    return {"scope": "tenant", "subject": 'Zoë & "Söhne" 你好 \u200f\x7f', "limit": count}


@pytest.mark.parametrize(("path", "name", "body"), ENDPOINTS)
async def test_more_output_than_the_tenant_may_have(
    fleet: Fleet, path: str, name: str, body: dict[str, Any]
) -> None:
    detail = await tenant_bound(fleet, 20)
    response = await fleet.post({**body, name: 21}, path=path)
    assert response.status == 400
    assert limit_of(response) == {"name": "output_tokens", **detail}
    error = response.json()["error"]
    told = error if path != "/v1/messages" else {**error["details"], "code": error["details"]["error_code"]}
    assert (told["code"], told["param"]) == ("output_limit_exceeded", name)
    for asked in ({name: 20}, {}):
        if path == "/v1/messages" and not asked:
            continue  # there it must be said
        connection = await fleet.open({**body, **asked}, path=path)
        assert (await fleet.gateways[0].dispatcher.submitted()).max_tokens == 20
        connection.close()


async def test_a_least_output_that_may_not_be_had(fleet: Fleet) -> None:
    """Without `max_tokens`: with it, it is compared with that one."""
    await tenant_bound(fleet, 20)
    for count, code in ((21, "output_limit_exceeded"), (600, "context_length_exceeded")):
        response = await fleet.post({"model": MODEL, "messages": MESSAGES, "min_tokens": count})
        error = response.json()["error"]
        assert (response.status, error["code"], error["param"]) == (400, code, "min_tokens")
    connection = await fleet.open({"model": MODEL, "messages": MESSAGES, "min_tokens": 20})
    assert (await fleet.gateways[0].dispatcher.submitted()).max_tokens == 20
    connection.close()


async def test_the_smaller_of_two_bounds_is_named(fleet: Fleet) -> None:
    tenants = await tenant_bound(fleet, 20)
    routed = "UPDATE modelsvc_modelroute SET max_output_tokens = %s"
    try:
        for count, detail in (
            (19, {"scope": "model", "subject": MODEL, "limit": 19}),
            (21, tenants),
        ):
            await fleet.apply(routed, count)
            response = await fleet.post({**BODY, "max_tokens": 22})
            assert response.json()["error"]["code"] == "output_limit_exceeded"
            assert limit_of(response) == {"name": "output_tokens", **detail}
            connection = await fleet.open({"model": MODEL, "messages": MESSAGES})
            submit = await fleet.gateways[0].dispatcher.submitted()
            assert submit.max_tokens == detail["limit"]
            connection.close()
    finally:
        await fleet.apply(routed, None)


# -- what the dispatcher says, and what is told of it -------------------------------------------------------


def refusing(code: str, retry_after_ms: int) -> Callable[[GatewayProcess], Callable[[Submit], None]]:
    def script_of(gateway: GatewayProcess) -> Callable[[Submit], None]:
        def script(submit: Submit) -> None:
            ended = Ended(sid=submit.sid, code=code, message="no", retry_after_ms=retry_after_ms)
            asyncio.get_running_loop().call_later(0.2, gateway.dispatcher.send, ended)

        return script

    return script_of


@pytest.mark.parametrize(
    ("code", "retry_after_ms", "status", "name"),
    [
        ("queue_full", 2_500, 429, "queue"),
        ("queue_full", 10**7, 429, "queue"),
        ("no_replica", 0, 503, "replicas"),
    ],
)
async def test_a_refusal_names_the_model_to_everyone_who_waits(
    fleet: Fleet, code: str, retry_after_ms: int, status: int, name: str
) -> None:
    """Also to a duplicate that is attached to the first request, on another gateway."""
    with fleet.scripted(refusing(code, retry_after_ms)):
        answers = await asyncio.gather(
            *(fleet.post(STREAMED, key(f"{code} {retry_after_ms}"), gateway=index) for index in (0, 1))
        )
    for answer in answers:
        assert answer.status == status, answer.body
        limit = limit_of(answer)
        assert (limit["name"], limit["scope"], limit["subject"]) == (name, "model", MODEL)
        assert retry_ms_of(answer) == min(retry_after_ms or 1_000, 60_000)


@settings(deadline=None)
@given(
    st.builds(
        LimitDetail,
        name=st.text(),
        scope=st.sampled_from(["gateway", "model", "tenant", "key", "request"]),
        subject=st.text(),
        used=st.none() | NUMBERS,
        held=st.none() | NUMBERS,
        limit=st.none() | NUMBERS,
        clears_in_ms=st.none() | NUMBERS,
    ),
    st.none() | NUMBERS,
)
async def test_header_and_body_say_the_same_of_a_limit(
    limit: LimitDetail, retry_after_ms: int | None
) -> None:
    error = ApiError("queue_full", "m", retry_after_ms=retry_after_ms, limit=limit)
    headers = {name.decode(): value.decode("ascii") for name, value in error.headers}
    assert headers["x-sluice-limit"].isprintable()
    assert json.loads(headers["x-sluice-limit"]) == json.loads(error.envelope())["error"]["limit"]
    if retry_after_ms is None:
        assert "retry-after" not in headers
    else:
        wait_ms = int(headers["retry-after-ms"])
        assert 1 <= wait_ms <= 60_000
        assert int(headers["retry-after"]) == -(-wait_ms // 1000)
