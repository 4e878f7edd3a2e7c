"""What a worker does not take, it refuses by name; who may not talk to it hears why."""

import asyncio

import pytest

from gpuworker.wire.connection import connect
from gpuworker.wire.messages import (
    AnyMessage,
    Grammar,
    Heartbeat,
    Refusal,
    Refused,
    Sampling,
    Welcome,
    pack_ids,
)
from tests.worker.conftest import Stage
from tests.worker.peers import usage_collect
from tests.worker.support import submit_make


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"digest": "0" * 64}, "misrouted"),
        ({"digest": ""}, "misrouted"),
        ({"prompt": b""}, "unservable"),
        ({"prompt": b"\x01\x00\x00"}, "unservable"),
        ({"prompt": pack_ids([70_000])}, "unservable"),
        ({"prompt": pack_ids([65] * 4096)}, "too_long"),
        ({"max_tokens": 0}, "unservable"),
        ({"sampling": Sampling(temperature=-1.0)}, "unservable"),
        ({"sampling": Sampling(top_p=0.0)}, "unservable"),
        ({"n": 0}, "unservable"),
        ({"grammar": Grammar(kind="regex", text="(")}, "invalid_grammar"),
    ],
)
async def test_an_unservable_row_is_refused_and_leaves_nothing(
    stage: Stage, changed: dict[str, object], code: str
) -> None:
    await stage.start()
    gateway = await stage.gateway()
    stage.run(gateway, 1, "never", **changed)
    await stage.dispatcher.until(lambda: stage.dispatcher.refused)
    (refused,) = stage.dispatcher.refused
    assert (refused.row, refused.code) == (gateway.row(1), code)
    assert refused.message
    stage.run(gateway, 1, "fine", max_tokens=4)
    await gateway.until_ended(1)
    assert gateway.text(1) == "fine"
    assert len(gateway.ends) == 1
    await stage.dispatcher.until_idle()


async def test_more_rows_than_it_has_are_refused_for_another_worker_to_take(stage: Stage) -> None:
    await stage.start("--max-rows", "4", "--step-ms", "10")
    gateway = await stage.gateway()
    for sid in range(6):
        stage.run(gateway, sid, "row", max_tokens=30)
    await gateway.until_ended(0, 1, 2, 3)
    assert [(refused.row.sid, refused.code) for refused in stage.dispatcher.refused] == [
        (4, "capacity"),
        (5, "capacity"),
    ]
    stage.run(gateway, 6, "row", max_tokens=3)
    await gateway.until_ended(6)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"secret": "another secret"}, "bad_secret"),
        ({"secret": ""}, "bad_secret"),
        ({"secret": "é"}, "bad_secret"),
        ({"version": 2}, "bad_version"),
        ({"role": "dispatcher"}, "bad_role"),
        ({"incarnation": ""}, "bad_role"),
    ],
)
async def test_a_visitor_with_a_bad_greeting_is_refused(
    stage: Stage, changed: dict[str, object], code: str
) -> None:
    await stage.start()
    visitor = stage.absent_gateway()
    await visitor.connect(**changed)
    await visitor.until(lambda: visitor.closed)
    (answer,) = visitor.answers
    assert isinstance(answer, Refusal)
    assert answer.code == code
    assert not any("another secret" in line for line in stage.worker.log)


async def test_a_visitor_that_does_not_greet_is_refused(stage: Stage) -> None:
    await stage.start()
    answers: asyncio.Queue[AnyMessage | str] = asyncio.Queue()
    connection = await connect(
        stage.worker.address,
        lambda _, message: answers.put_nowait(message),
        lambda _, cause: answers.put_nowait(cause),
    )
    connection.send(Heartbeat())
    assert await answers.get() == Refusal(code="bad_role", message="the first message must be Hello")
    assert await answers.get() == "closed by peer"


async def test_a_gateway_may_not_send_what_only_the_dispatcher_may(stage: Stage) -> None:
    await stage.start()
    gateway = await stage.gateway()
    gateway.send(gateway.run(1, "smuggled", digest=stage.digest))
    await gateway.until(lambda: gateway.closed)
    assert gateway.frames == []
    other = await stage.gateway()
    stage.run(other, 1, "fine", max_tokens=4)
    await other.until_ended(1)


async def test_the_welcome_repeats_the_digest(stage: Stage) -> None:
    await stage.start()
    gateway = await stage.gateway()
    (welcome,) = gateway.answers
    assert isinstance(welcome, Welcome)
    assert welcome.digest == stage.digest == stage.dispatcher.hellos[0].digest
    assert welcome.incarnation == stage.dispatcher.hellos[0].incarnation
    assert stage.dispatcher.hellos[0].capacity is not None
    assert stage.dispatcher.hellos[0].capacity.max_tokens == 4096


async def test_a_worker_that_the_dispatcher_refuses_tries_again(stage: Stage) -> None:
    stage.dispatcher.refuse_next = Refusal(code="duplicate_id", message="worker-0 is here already")
    await stage.start()
    assert len(stage.dispatcher.hellos) == 2
    assert sum("duplicate_id" in line for line in stage.worker.log) == 1


async def test_a_tenants_text_and_the_secret_stay_out_of_the_log(stage: Stage) -> None:
    await stage.start()
    gateway = await stage.gateway()
    stage.run(gateway, 1, "confidential", max_tokens=20)
    stage.run(gateway, 2, "confidential", max_tokens=0)
    await gateway.until_ended(1)
    await stage.dispatcher.until(lambda: stage.dispatcher.refused)
    await usage_collect(stage.worker.address)
    await stage.worker.kill()
    assert stage.worker.log
    assert not any("confidential" in line or "a secret of" in line for line in stage.worker.log)


async def test_each_choice_takes_a_row_but_an_idle_worker_takes_any_number(stage: Stage) -> None:
    await stage.start("--max-rows", "4", "--step-ms", "10")
    gateway = await stage.gateway()
    stage.run(gateway, 1, "row", max_tokens=30, n=6)
    stage.run(gateway, 2, "row", max_tokens=30)
    await gateway.until_ended(1)
    stage.run(gateway, 3, "row", max_tokens=30, n=3)
    stage.run(gateway, 4, "row", max_tokens=30, n=2)
    stage.run(gateway, 5, "row", max_tokens=30)
    await gateway.until_ended(3, 5)
    assert [(refused.row.sid, refused.code) for refused in stage.dispatcher.refused] == [
        (2, "capacity"),
        (4, "capacity"),
    ]
    assert [gateway.text(1, choice) for choice in range(6)] == ["row" * 10] * 6


async def test_a_worker_that_computes_prompts_for_others_runs_no_rows(stage: Stage) -> None:
    await stage.start("--role", "prefill", "--label", "long_prompt")
    gateway = await stage.gateway()
    stage.run(gateway, 1, "row")
    await stage.dispatcher.until(lambda: stage.dispatcher.refused)
    assert stage.dispatcher.refused[0].code == "misrouted"
    hello = stage.dispatcher.hellos[0]
    assert (hello.serves, hello.labels, hello.kv_dtype) == ("prefill", ["long_prompt"], "scripted")


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_roles_need_the_prefix_cache(stage: Stage, role: str) -> None:
    await stage.worker.start("--role", role, "--prefix-cache", "off")
    assert await stage.worker.exit_status() == 2
    assert "need the prefix cache" in stage.worker.log[-1]


async def test_only_workers_are_given_kv_and_only_by_those_who_compute_for_others(stage: Stage) -> None:
    await stage.start("--role", "decode")
    gateway = await stage.gateway()
    gateway.send(submit_make(1, "another tenant's prompt", digest=stage.digest))
    await gateway.until(lambda: gateway.closed)
    worker = stage.absent_gateway()
    await worker.connect(role="worker")
    worker.send(submit_make(1, "a prompt", digest=stage.digest))
    await worker.until(lambda: len(worker.answers) == 2)
    refused = worker.answers[1]
    assert isinstance(refused, Refused)
    assert refused.code == "misrouted"
    await stage.dispatcher.until_idle()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--label", "long-prompt"),
        ("--target-itl-ms", "nan"),
        ("--target-itl-ms", "inf"),
        ("--host-kv-blocks", "-1"),
    ],
)
async def test_a_wrong_option_is_named(stage: Stage, option: str, value: str) -> None:
    await stage.worker.start(option, value)
    assert await stage.worker.exit_status() == 2
    assert option in stage.worker.log[-1]
