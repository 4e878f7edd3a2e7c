"""External replicas behind a real gateway and dispatcher: streamed, cancelled, metered, bounded, replaced."""

import asyncio
import time
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from devservices.valkey import ValkeyServer
from tests.backends.serving import KEY, Platform, Seen, platform_started, stream, until
from tests.gateway.harness import MODEL

PROMPT = "0123456789abcdefg"
TOKENS = 40


@pytest.fixture
async def platform() -> AsyncIterator[Platform]:
    async with platform_started() as started:
        yield started


def echo(prompt: str, count: int) -> str:
    return (prompt * (count // len(prompt) + 1))[:count]


@pytest.mark.parametrize("flavour", ["vllm", "generic", "tgi"])
async def test_an_answer_is_streamed_and_metered_by_our_own_count(platform: Platform, flavour: str) -> None:
    # Given a server that claims to have produced more than it sent
    upstream = await platform.worker("a", flavour=flavour)
    upstream.script.usage_factor = 3
    async with platform.client() as client:
        seen = await stream(client, PROMPT, Seen(), max_tokens=TOKENS)
    assert (seen.text, seen.ending) == (echo(PROMPT, TOKENS), "length")
    # Then what was seen is billed, and some slack; the difference is told; the key is in no log
    record = platform.record(seen)
    assert (record.outcome, record.worker, record.prompt_tokens) == ("completed", "upstream-a", len(PROMPT))
    assert TOKENS <= record.output_tokens <= TOKENS * 1.1
    await until(lambda: "told 120 output tokens, 40 were counted" in platform.log("a"))
    assert any(KEY in head for head in upstream.heads)
    for log in (platform.log("a"), platform.log("dispatch"), platform.gateway.log.read_text()):
        assert KEY not in log
        assert PROMPT not in log


@pytest.mark.parametrize("flavour", ["vllm", "tgi"])
async def test_the_server_stops_when_the_client_leaves(platform: Platform, flavour: str) -> None:
    upstream = await platform.worker("a", flavour=flavour)
    upstream.script.step_s = 0.02
    async with platform.client() as client:
        opened = await client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=400, stream=True)
        async for chunk in opened:
            if chunk.choices and chunk.choices[0].text:
                break
        left = asyncio.get_running_loop().time()
        await opened.close()
        await upstream.until_left(1)
        assert upstream.closed[0] - left < 1.0
    await until(lambda: platform.gateway.usage())
    (record,) = platform.gateway.usage()
    assert (record.outcome, record.prompt_tokens) == ("cancelled", len(PROMPT))
    assert 1 <= record.output_tokens < 100


async def test_quotas_bind_before_the_server_is_asked(valkey: ValkeyServer) -> None:
    tenant = str(uuid4())
    quotas = [
        {"scope": "tenant", "subject": "acme", "name": name, "limit": limit}
        for name, limit in (("concurrent_requests", 1), ("tokens_per_minute", 10_000))
    ]
    full_key = {"quotas": quotas, "tenant": tenant}
    async with platform_started(redis_url=valkey.url, full_key=full_key) as platform:
        upstream = await platform.worker("a")
        upstream.script.step_s = 0.02
        async with platform.client() as client:
            first, second = Seen(), Seen()
            running = asyncio.create_task(stream(client, PROMPT, first, max_tokens=300, stop="ef"))
            await until(lambda: first.text)
            await stream(client, PROMPT, second, max_tokens=5)
            assert second.ending == "429 concurrent_requests"
            assert len(upstream.served) == 1
            # And a whole answer costs what it used, not what it might have
            await running
            assert first.ending == "stop"
            last = await client.completions.with_raw_response.create(model=MODEL, prompt=PROMPT, max_tokens=5)
        spent = 10_000 - int(last.headers["x-ratelimit-remaining-tokens"])
        assert spent < 100


@pytest.mark.parametrize(
    ("fault", "words"), [("drops_after", "upstream_broken"), ("hangs_after", "upstream_silent")]
)
@pytest.mark.parametrize("key", ["continuing", "full"])
async def test_a_server_that_fails_midway_is_replaced_or_named(
    platform: Platform, fault: str, words: str, key: str
) -> None:
    # Given a stream whose server breaks off after some tokens and is not to be used again, and another server
    failing, other = await platform.worker("a"), await platform.worker("b")
    failing.script.step_s = other.script.step_s = 0.05
    seen = Seen()
    async with platform.client(key) as client:
        running = asyncio.create_task(stream(client, PROMPT, seen, max_tokens=TOKENS))
        await until(lambda: seen.text)
        if other.served:
            failing, other = other, failing
        failing.script.health_hangs = True
        setattr(failing.script, fault, 15)
        await running
    record = platform.record(seen)
    assert (record.lost_cause, record.prompt_tokens) == ("upstream_failed", len(PROMPT))
    assert record.output_tokens == len(seen.text)
    if key == "full":  # its client was shown tokens, and did not ask for more of somebody else
        assert (seen.ending, seen.text) == ("replica_lost", echo(PROMPT, 15))
        assert seen.message.startswith(f"{words}: the model's server ")
        assert (record.outcome, record.replica_attempts) == ("replica_lost", 1)
        return
    assert (seen.ending, record.outcome) == ("length", "completed")
    assert record.replica_attempts == 2
    given = echo(PROMPT, 15)
    assert seen.text == given + echo(PROMPT + given, TOKENS - 15)  # it echoes all that it is given
    assert len(other.served[0]["prompt"]) == len(PROMPT) + 15


async def test_with_one_of_three_hung_every_client_is_answered(platform: Platform) -> None:
    for name in ("a", "b", "c"):
        (await platform.worker(name)).script.step_s = 0.02
    hung = platform.upstreams["b"]
    hung.script.hangs_before = True
    async with platform.client() as client:
        prompts = [f"{number:02}{PROMPT}" for number in range(30)]
        answers = await asyncio.gather(*(stream(client, one, Seen(), max_tokens=10) for one in prompts))
        for prompt, seen in zip(prompts, answers, strict=True):
            assert (seen.text, seen.ending) == (prompt[:10], "length")
        outcomes = [platform.record(seen) for seen in answers]
        assert {record.outcome for record in outcomes} == {"completed"}
        assert {record.worker for record in outcomes} == {"upstream-a", "upstream-c"}
        # Then the hung one was tried, nothing runs there, and no client's request goes there
        asked = len(hung.served)
        assert asked
        await hung.until_left(asked)
        await asyncio.gather(*(stream(client, one, Seen(), max_tokens=10) for one in prompts[:10]))
        assert len(hung.served) == asked
        # Until it answers again
        hung.script.hangs_before = False
        deadline = time.monotonic() + 15
        while len(hung.served) == asked and time.monotonic() < deadline:
            await asyncio.gather(*(stream(client, one, Seen(), max_tokens=10) for one in prompts[:10]))
        assert len(hung.served) > asked


async def test_with_every_server_hung_a_request_ends_with_504(platform: Platform) -> None:
    for name in ("a", "b"):
        (await platform.worker(name)).script.hangs_before = True
    async with platform.client() as client:
        seen = await stream(
            client, PROMPT, Seen(), max_tokens=5, extra_headers={"x-request-deadline-ms": "3000"}
        )
    assert seen.ending == "504 deadline_exceeded"
    for upstream in platform.upstreams.values():
        await upstream.until_left(len(upstream.served))
