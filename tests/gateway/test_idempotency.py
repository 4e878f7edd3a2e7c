"""Requests with an Idempotency-Key: one generation and one bill, however often and wherever they are sent."""

import asyncio
from dataclasses import replace

import pytest

from gpuworker.wire.messages import Submit
from tests.gateway.durable import BODY, Fleet, key, paced
from tests.gateway.raw import Response

pytestmark = pytest.mark.asyncio(loop_scope="package")

WORDS = ["Hello", " wörld", " 你好", " \u2028line", ' "end"\n']
STREAMED = {**BODY, "stream": True}


def code(response: Response) -> tuple[int, str]:
    return response.status, response.json()["error"]["code"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("gateways", [1, 2])
async def test_twenty_at_once_are_one_generation(fleet: Fleet, *, gateways: int, stream: bool) -> None:
    submits: list[Submit] = []
    with fleet.scripted(paced(WORDS, 0.05, submits=submits)):
        answers = await asyncio.gather(
            *(
                fleet.post({**BODY, "stream": stream}, key("one"), gateway=number % gateways)
                for number in range(20)
            )
        )
    assert [answer.status for answer in answers] == [200] * 20
    assert len({answer.body for answer in answers}) == 1
    assert len({answer.headers["x-request-id"] for answer in answers}) == 1
    assert sum("idempotent-replayed" in answer.headers for answer in answers) == 19
    assert len(submits) == 1
    (row,) = await fleet.usage_rows(1)
    assert str(row[0]) == answers[0].headers["x-request-id"]
    if not stream:
        assert answers[0].json()["choices"][0]["message"]["content"] == "".join(WORDS)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_finished_one_is_replayed_by_any_gateway(fleet: Fleet, *, stream: bool) -> None:
    with fleet.scripted(paced(WORDS)):
        first = await fleet.post({**BODY, "stream": stream}, key("again"))
    again = await fleet.post({**BODY, "stream": stream}, 'Idempotency-Key: "again"', gateway=1)
    assert (again.status, again.body) == (200, first.body)
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    await fleet.usage_rows(1)


async def test_another_body_or_path_is_422(fleet: Fleet) -> None:
    with fleet.scripted(paced(WORDS)):
        assert (await fleet.post(BODY, key("used"))).status == 200
    for body, path in (
        ({**BODY, "max_tokens": 4}, "/v1/chat/completions"),
        ({"model": "tiny", "prompt": "x"}, "/v1/completions"),
    ):
        refused = await fleet.post(body, key("used"), path=path)
        assert code(refused) == (422, "idempotency_key_reused")
    with fleet.scripted(paced(WORDS)):
        assert (await fleet.post({"inputs": "x"}, key("path"), path="/generate")).status == 200
    assert (await fleet.post({"inputs": "x"}, key("path"), path="/")).status == 422
    reordered = dict(reversed(BODY.items()))
    assert (await fleet.post(reordered, key("used"))).status == 200
    await fleet.usage_rows(2)


async def test_one_tenants_keys_are_not_anothers(fleet: Fleet) -> None:
    with fleet.scripted(paced(WORDS)):
        first = await fleet.post(BODY, key("shared"))
        stranger = fleet.of(fleet.others.pop())
        other = await stranger.post({**BODY, "max_tokens": 4}, key("shared"))
    assert (first.status, other.status) == (200, 200)
    assert "idempotent-replayed" not in other.headers
    await fleet.usage_rows(1)
    await stranger.usage_rows(1)


async def test_another_key_of_the_tenant_gets_the_same_answer(fleet: Fleet) -> None:
    with fleet.scripted(paced(WORDS)):
        first = await fleet.post(BODY, key("colleague"))
    colleague = fleet.of(replace(fleet.customer, key=fleet.customer.other_key))
    again = await colleague.post(BODY, key("colleague"), gateway=1)
    assert again.body == first.body
    await fleet.usage_rows(1)


async def test_what_never_ran_may_be_sent_again(fleet: Fleet) -> None:
    bad = await fleet.post({**BODY, "max_tokens": -1}, key("later"))
    assert bad.status == 400
    with fleet.scripted(paced(WORDS)):
        assert (await fleet.post(BODY, key("later"))).status == 200
    await fleet.usage_rows(1)


async def test_a_key_that_is_none(fleet: Fleet) -> None:
    for name in ("", '""', "x" * 256, "a\tb"):
        refused = await fleet.post(BODY, f"idempotency-key: {name}")
        assert (refused.status, refused.json()["error"]["param"]) == (400, "idempotency-key"), name


async def test_zero_retention_keeps_the_usage_alone(fleet: Fleet) -> None:
    fleet = fleet.of(fleet.strict.pop())
    submits: list[Submit] = []
    with fleet.scripted(paced(WORDS, 0.02, submits=submits)):
        first, meanwhile = await asyncio.gather(
            fleet.post(STREAMED, key("secret"), "x-stream-resume: 1"), fleet.post(STREAMED, key("secret"))
        )
        again = await fleet.post(STREAMED, key("secret"), gateway=1)
    if first.status != 200:  # whichever came first
        first, meanwhile = meanwhile, first
    assert (first.status, b"\nid: " in first.body) == (200, False)
    for refused in (meanwhile, again):
        assert code(refused) == (409, "replay_not_available")
        assert refused.json()["error"]["usage"]["completion_tokens"] == 5
    assert (await fleet.get(f"/v1/streams/{first.headers['x-request-id']}")).status == 410
    assert len(submits) == 1
    (kept,) = await fleet.sql(
        "SELECT answer FROM billing_idempotencyrecord WHERE tenant_id = %s", fleet.customer.tenant_id
    )
    assert kept == (None,)
    await fleet.usage_rows(1)


async def test_an_answer_over_the_bound_is_not_kept(fleet: Fleet) -> None:
    words = [character * 400_000 for character in "abc"]  # over 1 MiB, and longer than a token log
    with fleet.scripted(paced(words)):
        first = await fleet.post(BODY, key("long"))
    assert (first.status, len(first.json()["choices"][0]["message"]["content"])) == (200, 1_200_000)
    again = await fleet.post(BODY, key("long"), gateway=1)
    assert code(again) == (409, "replay_not_available")
    assert again.json()["error"]["usage"]["completion_tokens"] == 3
    await fleet.usage_rows(1)


async def test_a_stored_answer_that_cannot_be_read_is_not_run_again(fleet: Fleet) -> None:
    with fleet.scripted(paced(WORDS)):
        assert (await fleet.post(BODY, key("broken"))).status == 200
    await fleet.sql(
        "UPDATE billing_idempotencyrecord SET answer = set_byte(answer, 20, get_byte(answer, 20) # 1)"
        " WHERE tenant_id = %s",
        fleet.customer.tenant_id,
    )
    again = await fleet.post(BODY, key("broken"), gateway=1)
    assert code(again) == (409, "replay_not_available")
    assert again.json()["error"]["usage"]["completion_tokens"] == 5
    await fleet.usage_rows(1)


@pytest.mark.parametrize("reason", ["error", "deadline"])
async def test_a_stream_that_failed_after_its_first_token_is_replayed(fleet: Fleet, reason: str) -> None:
    """Its client has text that no other attempt may contradict."""
    with fleet.scripted(paced(WORDS[:2], reason=reason)):
        first = await fleet.post(STREAMED, key("failing"))
    assert b"event: error" in first.body
    with fleet.scripted(paced(WORDS)):
        again = await fleet.post(STREAMED, key("failing"), gateway=1)
    assert (again.status, again.body) == (200, first.body)
    assert again.headers["idempotent-replayed"] == "true"
    await fleet.usage_rows(1)


@pytest.mark.parametrize(
    ("reason", "output"), [("error", 2), ("deadline", 2), ("error", 0), ("cancelled", 2)]
)
async def test_a_failure_that_told_nothing_is_run_again(fleet: Fleet, *, reason: str, output: int) -> None:
    """All attempts together are billed as the longest one."""
    with fleet.scripted(paced(WORDS[:output], reason=reason)):
        first = await fleet.post(BODY, key("failing"))
    assert first.status >= 500
    with fleet.scripted(paced(WORDS)):
        again = await fleet.post(BODY, key("failing"), gateway=1)
    assert (again.status, again.headers.get("idempotent-replayed")) == (200, None)
    rows = await fleet.usage_rows(2)
    assert {row[0] for row in rows} == {rows[0][0]}
    assert [row[1] for row in rows] == [1, 2]
    assert sum(row[4] for row in rows) == 5


async def test_a_lost_replica_is_run_again_and_billed_once(fleet: Fleet) -> None:
    gateway = fleet.gateways[0]
    connection = await fleet.open(STREAMED, key("unlucky"))
    submit = await gateway.dispatcher.submitted()
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.emit(submit.sid, 0, 2, "Hello wörld")
    await connection.head()
    await connection.chunk()
    assert gateway.worker.connection is not None
    gateway.worker.connection.abort("cut")
    while chunk := await connection.chunk():
        last = chunk
    assert b"replica_lost" in last
    await gateway.ready()
    with fleet.scripted(paced(WORDS)):
        again = await fleet.post(STREAMED, key("unlucky"), gateway=1)
    assert again.body.endswith(b"data: [DONE]\n\n")
    first, second = await fleet.usage_rows(2)
    assert (first[1], second[1]) == (1, 2)
    assert (first[3] > 0) + (second[3] > 0) == 1  # the prompt once
    assert first[4] + second[4] == 5


async def test_a_duplicate_has_a_deadline_of_its_own(fleet: Fleet) -> None:
    """Attached or not, it is told at its own deadline that the first one still runs."""
    first = asyncio.create_task(fleet.post(BODY, key("slow")))
    submit = await fleet.gateways[0].dispatcher.submitted()
    started = asyncio.get_running_loop().time()
    hurried = await asyncio.gather(
        *(fleet.post(BODY, key("slow"), "x-request-deadline-ms: 300", gateway=index) for index in (0, 1))
    )
    assert [code(answer) for answer in hurried] == [(409, "request_in_progress")] * 2
    assert all(int(answer.headers["retry-after-ms"]) > 0 for answer in hurried)
    assert 0.25 < asyncio.get_running_loop().time() - started < 3
    gateway = fleet.gateways[0]
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.emit(submit.sid, 0, 5, "".join(WORDS))
    gateway.worker.finish(submit.sid, "stop", output=5)
    assert (await first).status == 200
    await fleet.usage_rows(1)


async def test_a_duplicate_that_leaves_does_not_end_the_first(fleet: Fleet) -> None:
    gateway = fleet.gateways[0]
    first = asyncio.create_task(fleet.post(STREAMED, key("patient")))
    submit = await gateway.dispatcher.submitted()
    gateway.dispatcher.place(submit, gateway.worker)
    gateway.worker.emit(submit.sid, 0, 1, WORDS[0])
    for index in (0, 1):
        duplicate = await fleet.open(STREAMED, key("patient"), gateway=index)
        assert (await duplicate.head()).headers["idempotent-replayed"] == "true"
        await duplicate.chunk()
        duplicate.close()
    await asyncio.sleep(0.7)  # longer than it takes to look after those that were left
    assert gateway.worker.cancels.empty()
    gateway.worker.emit(submit.sid, 1, 4, "".join(WORDS[1:]))
    gateway.worker.finish(submit.sid, "stop", output=5)
    assert (await first).body.endswith(b"[DONE]\n\n")
    await fleet.usage_rows(1)
