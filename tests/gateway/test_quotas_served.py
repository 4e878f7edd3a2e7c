"""What a request takes of its tenant's quotas, seen from outside: headers, refusals, and what comes back."""

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from devservices.valkey import ValkeyServer
from gpuworker.wire.messages import Ended, Submit
from tests.gateway.harness import MODEL, QUICK, GatewayProcess, gateway_started
from tests.gateway.limit_details import limit_of, retry_ms_of
from tests.gateway.peers import echo
from tests.gateway.raw import RawConnection, Response

pytestmark = pytest.mark.asyncio(loop_scope="package")

TENANT = {"scope": "tenant", "subject": "acme"}
BODY = {"model": MODEL, "prompt": "hello", "max_tokens": 100}
TOKENS, REQUESTS, SLOTS = 1_000_000, 1_000, 3
EXPECTED = {"tokens": str(TOKENS), "requests": str(REQUESTS)}


def bound(name: str, limit: int, **more: Any) -> dict[str, Any]:
    return {**TENANT, "name": name, "limit": limit, **more}


QUOTAS = [
    bound("tokens_per_minute", TOKENS),
    bound("requests_per_minute", REQUESTS),
    bound("concurrent_requests", SLOTS),
]


def started(valkey: ValkeyServer, *quotas: dict[str, Any], **more: Any) -> Any:
    """Each time of another tenant: nothing was used yet."""
    full_key = {"quotas": quotas, "tenant": str(uuid4())}
    return gateway_started(limits=QUICK, redis_url=valkey.url, full_key=full_key, **more)


@pytest_asyncio.fixture(loop_scope="package")
async def bounded(valkey: ValkeyServer) -> AsyncIterator[GatewayProcess]:
    async with started(valkey, *QUOTAS) as gateway:
        yield gateway
        await gateway.idle()


async def ask(
    gateway: GatewayProcess, body: dict[str, Any] = BODY, path: str = "/v1/completions"
) -> Response:
    return await gateway.post(path, body)


def remaining(response: Response, of: str) -> int:
    return int(response.headers[f"x-ratelimit-remaining-{of}"])


async def begun(gateway: GatewayProcess, **more: Any) -> tuple[RawConnection, Submit]:
    connection = await RawConnection.open(gateway.port)
    body = json.dumps({**BODY, **more}).encode()
    connection.send("POST", "/v1/completions", body, gateway.authorization())
    submit = await gateway.dispatcher.submitted()
    gateway.dispatcher.place(submit, gateway.worker)
    return connection, submit


async def slots_are_free(gateway: GatewayProcess) -> None:
    """All of them: as many requests as there are slots run at the same time."""
    held = [await begun(gateway) for _ in range(SLOTS)]
    for connection, submit in held:
        gateway.worker.emit(submit.sid, 0, 1, "one")
        gateway.worker.finish(submit.sid, "stop", output=1)
        assert (await connection.response()).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_every_answer_says_what_is_left(bounded: GatewayProcess, stream: bool) -> None:
    with bounded.dispatcher.scripted(echo(bounded.dispatcher)):
        response = await ask(bounded, {**BODY, "stream": stream})
    assert response.status == 200
    for name, limit in EXPECTED.items():
        assert response.headers[f"x-ratelimit-limit-{name}"] == limit
        assert 0 < remaining(response, name) < int(limit)
        assert response.headers[f"x-ratelimit-reset-{name}"]
    assert '"tokens";q=1000000;w=60' in response.headers["ratelimit-policy"]
    assert '"requests";r=' in response.headers["ratelimit"]


async def test_what_was_not_used_comes_back(bounded: GatewayProcess) -> None:
    with bounded.dispatcher.scripted(echo(bounded.dispatcher)):
        first = await ask(bounded)
        for _ in range(20):
            last = await ask(bounded)
    # 22 requests reserved 100 output tokens each, and used 5 each
    assert remaining(first, "tokens") - remaining(last, "tokens") < 20 * 100
    assert remaining(first, "requests") - remaining(last, "requests") <= 20


async def test_the_dispatchers_refusal_takes_nothing(bounded: GatewayProcess) -> None:
    def full(submit: Submit) -> None:
        bounded.dispatcher.send(
            Ended(sid=submit.sid, code="queue_full", message="full", retry_after_ms=1_500, name="queue")
        )

    with bounded.dispatcher.scripted(echo(bounded.dispatcher)):
        before = await ask(bounded)
    with bounded.dispatcher.scripted(full):
        refusals = [await ask(bounded) for _ in range(10)]
    assert {response.status for response in refusals} == {429}
    assert limit_of(refusals[0])["name"] == "queue"
    assert "x-ratelimit-limit-tokens" in refusals[0].headers
    with bounded.dispatcher.scripted(echo(bounded.dispatcher)):
        after = await ask(bounded)
    assert remaining(before, "requests") - remaining(after, "requests") <= 1


async def test_slots_are_held_while_requests_run_and_no_longer(bounded: GatewayProcess) -> None:
    held = [await begun(bounded) for _ in range(SLOTS)]
    refused = await ask(bounded)
    assert (refused.status, refused.json()["error"]["code"]) == (429, "concurrent_requests")
    assert (limit_of(refused)["limit"], limit_of(refused)["scope"]) == (SLOTS, "tenant")
    assert retry_ms_of(refused)
    # an abort, an error of the engine, a finished one
    held[0][0].close()
    bounded.worker.finish(held[1][1].sid, "error", output=0, message="boom")
    bounded.worker.emit(held[2][1].sid, 0, 1, "one")
    bounded.worker.finish(held[2][1].sid, "stop", output=1)
    assert (await held[1][0].response()).status == 500
    assert (await held[2][0].response()).status == 200
    await bounded.idle_requests()
    await slots_are_free(bounded)


@pytest.mark.parametrize(
    "wrong",
    [{"model": "absent"}, {"temperature": 9}, {"max_tokens": 100_000}, {"prompt": []}, {"surprise": 1}],
)
async def test_a_request_that_is_refused_before_takes_nothing(
    bounded: GatewayProcess, wrong: dict[str, Any]
) -> None:
    for _ in range(SLOTS + 1):
        response = await ask(bounded, {**BODY, **wrong})
        assert response.status in (400, 404)
        assert response.headers["x-ratelimit-limit-tokens"] == EXPECTED["tokens"]
    await slots_are_free(bounded)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", BODY),
        ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}),
        ("/v1/responses", {"model": MODEL, "input": "hello"}),
        ("/v1/messages", {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}),
        ("/generate", {"inputs": "hello"}),
    ],
)
async def test_refusals_are_explained_in_every_dialect(
    valkey: ValkeyServer, path: str, body: dict[str, Any]
) -> None:
    by_key = bound("requests_per_minute", 2, scope="key", subject="k")
    async with started(valkey, by_key, environment={"SLUICE_DEFAULT_MODEL": MODEL}) as gateway:
        with gateway.dispatcher.scripted(echo(gateway.dispatcher)):
            answers = [await ask(gateway, body, path) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    limit = limit_of(answers[-1])
    assert (limit["name"], limit["scope"], limit["limit"]) == ("requests_per_minute", "key", 2)
    assert 0 < limit["clears_in_ms"] <= 60_000
    assert answers[-1].headers["x-ratelimit-remaining-requests"] == "0"


async def test_a_request_that_can_never_fit_is_not_told_to_wait(valkey: ValkeyServer) -> None:
    async with started(valkey, bound("tokens_per_minute", 50)) as gateway:
        response = await ask(gateway)
    assert (response.status, response.json()["error"]["code"]) == (400, "request_exceeds_quota")
    assert "retry-after" not in response.headers
