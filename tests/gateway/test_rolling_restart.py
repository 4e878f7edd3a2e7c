"""Every process is restarted, one after the other, while clients work: none of them sees a failure.

Clients are the official ones as they come: one that finds its connection closed before an answer tries again.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from uuid import UUID

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.conftest import Database
from tests.gateway.cluster import Cluster, cluster_started
from tests.gateway.harness import MODEL

pytestmark = pytest.mark.asyncio(loop_scope="package")

CLIENTS = 12
TOKENS = 30
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@dataclass
class Load:
    """`whole`: request ids of answers that came whole; every other answer is a failure."""

    whole: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    is_over: bool = False
    told: asyncio.Event = field(default_factory=asyncio.Event)
    _numbers: "count[int]" = field(default_factory=count)

    async def run(self, client: AsyncOpenAI) -> None:
        while not self.is_over:
            number = next(self._numbers)
            prompt = f"{number % 100:02}{ALPHABET}"
            try:
                text, reason, answer_id = await (_streamed if number % 3 else _at_once)(client, prompt)
            except openai.APIError as error:
                self.failures.append(f"{number}: {error!r} {error.body}")
            else:
                if (text, reason) == ((prompt * 2)[:TOKENS], "length"):
                    self.whole.append(str(UUID(answer_id.removeprefix("cmpl-"))))
                else:
                    self.failures.append(f"{number}: {reason} {text}")
            self.told.set()

    async def go_on(self, answers: int) -> None:
        """Returns when so many more have come."""
        more = len(self.whole) + answers
        async with asyncio.timeout(60):
            while len(self.whole) < more and not self.failures:
                self.told.clear()
                await self.told.wait()


async def _streamed(client: AsyncOpenAI, prompt: str) -> tuple[str, str, str]:
    text, reason, answer_id = "", "", ""
    opened = await client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=TOKENS, stream=True, extra_body={"ignore_eos": True}
    )
    async for chunk in opened:
        answer_id = chunk.id
        for choice in chunk.choices:
            text, reason = text + choice.text, choice.finish_reason or reason
    return text, reason, answer_id


async def _at_once(client: AsyncOpenAI, prompt: str) -> tuple[str, str, str]:
    answer = await client.completions.create(
        model=MODEL, prompt=prompt, max_tokens=TOKENS, extra_body={"ignore_eos": True}
    )
    return answer.choices[0].text, answer.choices[0].finish_reason, answer.id


@pytest_asyncio.fixture(loop_scope="package")
async def cluster(tmp_path: Path, database: Database) -> AsyncIterator[Cluster]:
    async with cluster_started(tmp_path, database) as running:
        yield running


async def test_every_process_is_restarted_under_load_and_nobody_notices(cluster: Cluster) -> None:
    assert cluster.customer is not None
    load = Load()
    async with AsyncOpenAI(base_url=cluster.base_url, api_key=cluster.customer.key, timeout=60) as client:
        tasks = [asyncio.create_task(load.run(client)) for _ in range(CLIENTS)]
        for number in range(2):
            for restart in (cluster.gateway_restart, cluster.worker_restart, cluster.dispatcher_restart):
                await load.go_on(CLIENTS)
                await restart(number)
                assert not load.failures, restart.__name__
        for restarting in (cluster.store_restart(), cluster.postgres_restart(2.0)):
            await load.go_on(CLIENTS)
            await restarting
            await load.go_on(CLIENTS)
            assert not load.failures
        load.is_over = True
        await asyncio.gather(*tasks)
    print(f"{len(load.whole)} answers, failures: {load.failures}")
    assert not load.failures
    assert len(set(load.whole)) == len(load.whole)
    billed: dict[str, int] = {}
    for _ in range(150):
        if len(billed := await cluster.billed()) >= len(load.whole):
            break
        await asyncio.sleep(0.1)
    assert Counter(billed) == Counter(load.whole)
