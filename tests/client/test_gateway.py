"""The client and the command against real gateways, over PostgreSQL and Valkey, with a scripted worker."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from random import Random
from typing import Any

import openai
import pytest
import pytest_asyncio
from pytest_django.plugin import DjangoDbBlocker

from devservices.postgres import PostgresServer
from devservices.valkey import ValkeyServer
from gpuworker.wire.messages import Submit
from sluice_client import AsyncSluice, Restarted, ResumePolicy
from tests.client.processes import CLIENT, COMMAND
from tests.client.relay import relaying
from tests.conftest import database_clone
from tests.gateway.durable import Fleet, fleet_started, gateway_added, paced
from tests.gateway.harness import MODEL, GatewayProcess

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASK: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
WORDS = ["Hel", "lo ", "wörld", " 你好", "👩\u200d👩", "e\u0301", "\u2028", '"\\', "\n\n", "data: "] * 4
QUICK = ResumePolicy(first_wait_s=0.01, max_wait_s=0.2)
CLIENTS = 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    postgres: PostgresServer,
    database_template: Mapping[str, str],
    django_db_blocker: DjangoDbBlocker,
    valkey: ValkeyServer,
) -> AsyncIterator[Fleet]:
    """Two gateways."""
    with database_clone(postgres, database_template, django_db_blocker) as database:
        async with fleet_started(database, valkey, gateways=2, customers=10) as fleet:
            yield fleet


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(shared: Fleet) -> Fleet:
    """As a customer of its own sees it."""
    for gateway in shared.gateways:
        gateway.peers_reset()
        await gateway.ready()
    return shared.of(shared.others.pop())


def ports(fleet: Fleet) -> list[int]:
    return [gateway.port for gateway in fleet.gateways]


def beginning(gateway: GatewayProcess) -> Callable[[Submit], None]:
    """A worker that says two words and no more."""

    def script(submit: Submit) -> None:
        gateway.dispatcher.place(submit, gateway.worker)
        gateway.worker.emit(submit.sid, 0, 1, WORDS[0])
        gateway.worker.emit(submit.sid, 1, 1, WORDS[1])

    return script


async def test_cut_anywhere_and_resumed_on_either_gateway(fleet: Fleet) -> None:
    rng = Random(7)
    with fleet.scripted(paced(WORDS, 0.01)):
        async with (
            relaying(ports(fleet), lambda: int(rng.expovariate(1 / 2000))) as relay,
            # A first answer is often cut within its head: two retries are too few for all of them.
            AsyncSluice(relay.base_url, fleet.customer.key, resume=QUICK, max_retries=12) as client,
        ):
            streams = [
                client.chat.stream(**ASK, max_tokens=50, stream_options={"include_usage": True})
                for _ in range(CLIENTS)
            ]
            texts = await asyncio.gather(*(stream.read() for stream in streams))
    assert texts == ["".join(WORDS)] * CLIENTS
    assert sum(stream.answer.restarts for stream in streams) == 0
    assert CLIENTS < sum(stream.answer.resumes for stream in streams) <= relay.cuts
    assert {stream.answer.finish_reason for stream in streams} == {"stop"}
    assert {stream.answer.usage and stream.answer.usage.completion_tokens for stream in streams} == {
        len(WORDS)
    }
    rows = await fleet.usage_rows(CLIENTS)
    assert {str(row[0]) for row in rows} == {stream.answer.request_id for stream in streams}
    assert {(row[1], row[2], row[4]) for row in rows} == {(1, "completed", len(WORDS))}


async def worker_cancelled(gateway: GatewayProcess) -> None:
    await asyncio.wait_for(gateway.worker.cancels.get(), 1)


async def test_leaving_stops_the_worker_within_a_second(fleet: Fleet) -> None:
    gateway = fleet.gateways[0]
    with fleet.scripted(paced(["word "] * 50, 0.2)):
        async with AsyncSluice(gateway.base_url, fleet.customer.key) as client:
            async with client.completions.stream(model=MODEL, prompt="hello", max_tokens=50) as stream:
                async for _ in stream:
                    break
            await worker_cancelled(gateway)
            reading = asyncio.create_task(client.chat.stream(**ASK, max_tokens=50).read())
            await asyncio.sleep(0.5)
            reading.cancel()
            await worker_cancelled(gateway)
    assert {row[2] for row in await fleet.usage_rows(2)} == {"cancelled"}


async def test_a_killed_gateways_answer_begins_again_elsewhere_for_one_bill(fleet: Fleet) -> None:
    async with gateway_added(fleet) as wider:
        victim, other, _ = wider.gateways
        async with (
            relaying([victim.port, other.port]) as relay,
            AsyncSluice(relay.base_url, fleet.customer.key, resume=QUICK) as client,
        ):
            stream = client.chat.stream(**ASK, max_tokens=50)
            events = []
            with (
                victim.dispatcher.scripted(beginning(victim)),
                other.dispatcher.scripted(paced(WORDS)(other)),
            ):
                async for event in stream:
                    events.append(event)
                    if len(events) == 3:
                        victim.process.kill()
                        await victim.process.wait()
                        await wider.leases_end()
    assert stream.answer.text == "".join(WORDS)
    assert sum(isinstance(event, Restarted) for event in events) == 1
    rows = await fleet.usage_rows(1)
    told = (stream.answer.request_id, "completed", len(WORDS))
    assert [(str(row[0]), row[2], row[4]) for row in rows] == [told]


async def test_a_key_that_is_used_again_gets_the_same_answer(fleet: Fleet) -> None:
    with fleet.scripted(paced(WORDS)):
        answers = []
        for gateway in fleet.gateways:
            async with AsyncSluice(gateway.base_url, fleet.customer.key) as client:
                stream = client.chat.stream(**ASK, max_tokens=50, idempotency_key="mine")
                await stream.read()
                answers.append(stream.answer)
    first, again = answers
    assert first.text == again.text == "".join(WORDS)
    assert first.request_id == again.request_id
    assert (first.replayed, again.replayed) == (False, True)
    await fleet.usage_rows(1)


async def test_errors(fleet: Fleet) -> None:
    url = fleet.gateways[0].base_url
    async with AsyncSluice(url, "sk-slc-nobody") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.chat.stream(**ASK).read()
    async with AsyncSluice(url, fleet.customer.key) as client:
        with pytest.raises(openai.NotFoundError) as raised:
            await client.chat.stream(**{**ASK, "model": "absent"}).read()
    assert raised.value.code == "model_not_found"


async def command(fleet: Fleet, *arguments: str) -> asyncio.subprocess.Process:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(CLIENT),
        "PYTHONUTF8": "1",
        "SLUICE_BASE_URL": fleet.gateways[0].base_url,
        "SLUICE_API_KEY": fleet.customer.key,
    }
    return await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_the_command(fleet: Fleet, ctrl_c_is_not_ignored: None) -> None:
    with fleet.scripted(paced(WORDS)):
        process = await command(fleet, "chat", "--max-tokens", "50", "hello")
        out, err = await process.communicate()
    assert (process.returncode, out.decode(), err) == (0, "".join(WORDS) + "\n", b"")
    ((request_id, *_),) = await fleet.usage_rows(1)

    process = await command(fleet, "usage", "--json", str(request_id))
    out, err = await process.communicate()
    assert process.returncode == 0, err
    assert json.loads(out)["completion_tokens"] == len(WORDS)

    with fleet.scripted(paced(["word "] * 50, 0.2)):
        process = await command(fleet, "chat", "--max-tokens", "50", "hello")
        assert process.stdout is not None
        assert await process.stdout.readexactly(5) == b"word "
        process.send_signal(signal.SIGINT)
        await worker_cancelled(fleet.gateways[0])
        await process.communicate()
    assert process.returncode == 130
    assert sorted(row[2] for row in await fleet.usage_rows(2)) == ["cancelled", "completed"]
