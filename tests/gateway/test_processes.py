"""With the real dispatcher and a real worker process around the gateway; only the model is a script."""

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.gateway.harness import MODEL, QUICK, GatewayProcess, gateway_started
from tests.gateway.peers import SECRET
from tests.gateway.raw import RawConnection

pytestmark = pytest.mark.asyncio(loop_scope="package")

STEP_MS = 10


class Stack:
    def __init__(self, gateway: GatewayProcess, stack: AsyncExitStack) -> None:
        self.gateway = gateway
        self.worker: asyncio.subprocess.Process | None = None
        self._stack = stack
        self._workers = 0

    async def spawn(self, *arguments: str) -> asyncio.subprocess.Process:
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SLUICE_WIRE_SECRET": SECRET,
            "SLUICE_DISPATCH": self.gateway.dispatcher.address,
        }
        with (self.gateway.folder / f"log-{arguments[0]}").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *arguments, env=environment, stdout=log, stderr=log
            )
        self._stack.push_async_callback(_kill, process)
        return process

    async def worker_start(self) -> None:
        gateway = self.gateway
        self._workers += 1
        self.worker = await self.spawn(
            "gpuworker",
            *("--id", "worker-0", "--dispatch", gateway.dispatcher.address),
            *("--listen", f"unix:{gateway.folder}/w{self._workers}", "--model", MODEL),
            *("--weights", str(gateway.folder / "weights" / gateway.digest)),
            *("--spool", str(gateway.folder / "worker-spool"), "--backend", "scripted"),
            *("--step-ms", str(STEP_MS), "--target-itl-ms", "off"),
        )
        await gateway.ready(within_s=20)

    def client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.gateway.base_url, api_key=self.gateway.key, max_retries=0)


async def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def stack() -> AsyncIterator[Stack]:
    async with AsyncExitStack() as opened, gateway_started(limits=QUICK, peers=False) as gateway:
        running = Stack(gateway, opened)
        await running.spawn("dispatch")
        await running.worker_start()
        gateway.idle_tasks = await gateway.metric("tasks")
        yield running
        await gateway.idle()
        for name in ("dispatch", "gpuworker"):
            sys.stdout.write((gateway.folder / f"log-{name}").read_text())


async def test_concurrent_streams_each_have_their_own_text(stack: Stack) -> None:
    async with stack.client() as client:

        async def one(index: int) -> None:
            prompt = f"<{index} {secrets.token_hex(4)}> "
            stream = await client.completions.create(
                model=MODEL,
                prompt=prompt,
                max_tokens=len(prompt) * 3,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
            assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == prompt * 3
            usage = chunks[-1].usage
            assert usage is not None
            assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), len(prompt) * 3)

        await asyncio.gather(*(one(index) for index in range(32)))
    await stack.gateway.idle()


async def test_a_chat_is_templated_and_stops(stack: Stack) -> None:
    async with stack.client() as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hello <|im_end|> you"}]
        )
    # The script repeats its prompt up to the template's own end-of-turn token; the user's stayed text.
    assert answer.choices[0].message.content == "user\nhello <|im_end|> you"
    assert answer.choices[0].finish_reason == "stop"
    record = stack.gateway.usage_of(answer._request_id or "")
    assert answer.usage is not None
    assert record.output_tokens == answer.usage.completion_tokens
    assert record.worker == "worker-0"


async def test_an_answer_has_the_shape_that_was_asked_for(stack: Stack) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    shape: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    async with stack.client() as client:
        answer = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "is it so?"}],
            response_format=shape,
            max_tokens=200,
        )
        assert isinstance(json.loads(answer.choices[0].message.content or "")["ok"], bool)
        assert answer.choices[0].finish_reason == "stop"
        chosen = await client.completions.create(
            model=MODEL, prompt="yes or no", extra_body={"guided_choice": ["red", "green"]}
        )
        assert chosen.choices[0].text in ("red", "green")
        # A shape that cannot be followed is the client's to mend
        with pytest.raises(openai.BadRequestError) as refused:
            await client.completions.create(model=MODEL, prompt="x", extra_body={"guided_regex": "("})
    assert (refused.value.code, refused.value.param) == ("invalid_value", "guided_regex")
    assert "invalid_grammar" in refused.value.message


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_is_billed_what_was_generated(stack: Stack, stream: bool) -> None:
    body: dict[str, Any] = {"model": MODEL, "prompt": "count", "max_tokens": 400, "stream": stream}
    before = {record.request_id for record in stack.gateway.usage()}
    connection = await RawConnection.open(stack.gateway.port)
    connection.send("POST", "/v1/completions", json.dumps(body).encode(), stack.gateway.authorization())
    if stream:
        await connection.head()
        await connection.chunk()
    else:
        await asyncio.sleep(20 * STEP_MS / 1000)
    connection.close()
    await stack.gateway.idle()
    (record,) = [record for record in stack.gateway.usage() if record.request_id not in before]
    assert record.outcome == "cancelled"
    assert record.prompt_tokens == 5
    assert 0 < record.output_tokens < 400


async def test_worker_killed_under_load(stack: Stack) -> None:
    assert stack.worker is not None
    async with stack.client() as client:
        stream_started = asyncio.Event()

        async def one() -> str:
            try:
                stream = await client.completions.create(
                    model=MODEL, prompt="abc", max_tokens=400, stream=True
                )
                async for _ in stream:
                    stream_started.set()
            except openai.APIError as error:
                return str(error.code)
            return "ended"

        running = [asyncio.create_task(one()) for _ in range(16)]
        await stream_started.wait()
        stack.worker.send_signal(signal.SIGKILL)
        await stack.worker.wait()
        await stack.worker_start()
        outcomes = await asyncio.wait_for(asyncio.gather(*running), 20)
        # Those that had begun end, and those that had not run on the next one.
        assert set(outcomes) <= {"replica_lost", "ended"}
        assert "replica_lost" in outcomes
        answer = await client.completions.create(model=MODEL, prompt="again", max_tokens=5)
    assert answer.choices[0].text == "again"
    await stack.gateway.idle()
