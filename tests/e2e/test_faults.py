"""Processes killed under load: nobody waits for ever, nothing ends silently, what was made is billed."""

import asyncio
import os
import signal
import time
from typing import Any

import openai
import psycopg
import pytest

from tests.e2e.caller import Caller
from tests.e2e.observe import eventually, fleet, is_idle

pytestmark = pytest.mark.e2e


def _client(stack: Any, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=stack.demo["base_url"], api_key=stack.demo["api_key"], max_retries=0, **options
    )


async def _stream(client: openai.AsyncOpenAI, model: str, number: int) -> tuple[str, str]:
    """How it ended, and the request id."""
    request_id = ""
    try:
        stream = await client.completions.create(
            model=model,
            prompt=f"Story number {number}: once",
            max_tokens=400,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        async for chunk in stream:
            request_id = chunk.id
            if chunk.choices and chunk.choices[0].finish_reason:
                return "finished", request_id
    except openai.APIStatusError as error:
        return f"status {error.status_code} {error.code}", request_id
    except openai.APIError as error:
        return f"event {error.code}", request_id
    return "silent", request_id


async def test_a_worker_killed_under_load_is_replaced_and_no_stream_ends_silently(stack: Any) -> None:
    client, model = _client(stack), stack.demo["model"]
    streams = [asyncio.create_task(_stream(client, model, n)) for n in range(12)]
    await eventually(lambda: sum(w["running"] for w in fleet(stack.redis_url)["workers"]) >= 8, 20)
    await asyncio.sleep(0.5)
    os.kill(stack.demo["pids"]["worker-0"], signal.SIGKILL)
    async with asyncio.timeout(60):
        endings = await asyncio.gather(*streams)
    # What had begun ends, what had not runs on the worker that is started in its place.
    assert {how for how, _ in endings} <= {"event replica_lost", "finished"}, endings
    assert any(how == "event replica_lost" for how, _ in endings)

    async with _client(stack, timeout=60) as later:
        answer = await later.completions.create(model=model, prompt="One, two,", max_tokens=5)
    assert answer.usage is not None
    lost = [request_id.removeprefix("cmpl-") for how, request_id in endings if how == "event replica_lost"]

    def outcomes() -> list[str]:
        with psycopg.connect(stack.operator_url) as connection:
            found = connection.execute(
                "SELECT outcome FROM billing_usageevent WHERE request_id = ANY(%s::uuid[])", (lost,)
            ).fetchall()
        return [row[0] for row in found] if len(found) == len(lost) else []

    assert set(await eventually(outcomes, 20, "a usage row for every stream")) == {"replica_lost"}
    await client.close()


async def test_a_gateway_killed_under_load_has_its_streams_billed_by_the_reaper(stack: Any) -> None:
    await eventually(lambda: is_idle(stack.redis_url), 30)
    caller = Caller(stack)
    await caller.post("A very long story:", stream=True, max_tokens=1_500)
    event = await caller.read_events(80)
    request_id = event["id"].removeprefix("cmpl-")
    os.kill(stack.demo["pids"]["gateway"], signal.SIGKILL)
    killed = time.monotonic()

    def row() -> tuple[str, int] | None:
        with psycopg.connect(stack.operator_url) as connection:
            return connection.execute(
                "SELECT outcome, output_tokens FROM billing_usageevent WHERE request_id = %s", (request_id,)
            ).fetchone()

    outcome, output_tokens = await eventually(row, 40, "the reaper's row")
    assert time.monotonic() - killed < 30
    await caller.leave()
    assert outcome == "gateway_lost"
    assert output_tokens >= 64
    await eventually(lambda: is_idle(stack.redis_url), 20)
    assert await eventually_answers(stack, stack.demo["model"])


async def eventually_answers(stack: Any, model: str) -> str:
    async with asyncio.timeout(30):
        while True:
            try:
                async with _client(stack, timeout=20) as client:
                    answer = await client.completions.create(model=model, prompt="One, two,", max_tokens=5)
                    return answer.choices[0].text
            except (openai.APIConnectionError, openai.InternalServerError):
                await asyncio.sleep(0.2)


async def test_a_dispatcher_killed_leaves_running_streams_alone(stack: Any) -> None:
    client, model = _client(stack), stack.demo["model"]
    await eventually(lambda: is_idle(stack.redis_url), 30)
    streams = [asyncio.create_task(_stream(client, model, n)) for n in range(4)]
    await eventually(lambda: sum(w["running"] for w in fleet(stack.redis_url)["workers"]) >= 4, 20)
    os.kill(stack.demo["pids"]["dispatcher"], signal.SIGKILL)
    async with asyncio.timeout(120):
        endings = await asyncio.gather(*streams)
    assert {how for how, _ in endings} == {"finished"}
    assert await eventually_answers(stack, model)
    await client.close()
