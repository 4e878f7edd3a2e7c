"""Gateways are killed, or stopped, around durable requests: resumed or refused, and one bill."""

import asyncio
import secrets
import signal
import time
from dataclasses import replace
from random import Random

import psycopg
import pytest

from billing.presence import GONE_AFTER_S, Presence
from billing.reaper import reap
from billing.worker_usage import Cursor, worker_usage_store
from gpuworker.wire.messages import Submit, UsageCheckpoint
from tests.gateway.begun import RESUMABLE, STREAMED, WORDS, begin, code, rest
from tests.gateway.cutting import SPEECHES, Survivor
from tests.gateway.durable import Fleet, gateway_added, key, paced
from tests.gateway.proxy import relayed

pytestmark = pytest.mark.asyncio(loop_scope="package")

HEARD_S = 3.5  # after its death, or a pause, a gateway's heart is not heard any more


async def reaped(fleet: Fleet, submit: Submit, incarnation: str) -> None:
    """The worker of that dead gateway had counted three tokens: a controller collects that, and bills it."""
    gateway = fleet.gateways[0]
    checkpoint = UsageCheckpoint(
        request_id=submit.request_id,
        attempt=submit.attempt,
        tenant=submit.tenant,
        gateway=incarnation,
        worker=gateway.worker.name,
        worker_incarnation=gateway.worker.incarnation,
        model=submit.model,
        digest=submit.digest,
        klass=submit.klass,
        prompt_tokens=7,
        cached_tokens=0,
        output_tokens=3,
        reason="gateway_lost",
        at_ms=time.time_ns() // 1_000_000,
    )
    gone = Presence()
    for second in range(int(GONE_AFTER_S) + 1):
        gone.observe([], float(second))
    url = fleet.database.operator_url
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
        await worker_usage_store(conn, "worker-0", [checkpoint], Cursor("j", 1))
        await reap(conn, gone, gone, GONE_AFTER_S)


@pytest.mark.parametrize("reaped_first", [True, False])
async def test_a_killed_gateways_request_runs_again_elsewhere(fleet: Fleet, *, reaped_first: bool) -> None:
    async with gateway_added(fleet) as fleet:
        victim = fleet.gateways[0]
        begun = await begin(fleet, RESUMABLE, key("killed"), words=2)
        incarnation = victim.worker.hello.result().incarnation
        victim.process.kill()
        await victim.process.wait()

        # what it had sent can be read elsewhere, and then it is said that there is no more
        resumed = await begun.follow(after=2)
        assert (await resumed.head()).status == 200
        body = await rest(resumed)
        assert b" two" in body
        assert b"one" not in body
        assert b'"code":"gateway_lost"' in body
        assert code(await begun.get(after=3)) == (410, "resume_expired")

        # its key waits for the lease, and then runs again from the beginning
        if reaped_first:
            await reaped(fleet, begun.submit, incarnation)
        with fleet.scripted(paced(WORDS)):
            again = asyncio.create_task(fleet.post(STREAMED, RESUMABLE, key("killed"), gateway=1))
            await asyncio.sleep(0.3)
            assert not again.done()
            await fleet.leases_end()
            answer = await again
        assert answer.headers["x-request-id"] == begun.request_id
        assert answer.body.endswith(b"[DONE]\n\n")
        assert answer.body.count(b"one") == 1
        await fleet.settled("killed", "done")
        if not reaped_first:
            await fleet.usage_rows(1)
            await reaped(fleet, begun.submit, incarnation)
        rows = await fleet.usage_rows(2)
        assert {str(row[0]) for row in rows} == {begun.request_id}
        assert sum(row[3] > 0 for row in rows) == 1  # the prompt once
        assert sum(row[4] for row in rows) == len(WORDS)


def _words(submit: Submit) -> list[str]:
    """Of another attempt others."""
    return [f" {submit.attempt}.{number}" for number in range(40)]


async def test_killed_under_many_clients(fleet: Fleet) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = Random(seed)
    async with gateway_added(fleet) as fleet:
        fleet = replace(fleet, gateways=fleet.gateways[:2])
        names = [f"many-{number}" for number in range(12)]
        survivors = [Survivor(fleet, Random(f"{seed} {name}"), SPEECHES[0], key(name)) for name in names]
        with fleet.scripted(paced(_words, 0.02)):
            running = [asyncio.create_task(survivor.run(5)) for survivor in survivors]
            await asyncio.sleep(rng.uniform(0.1, 0.6))
            fleet.gateways[0].process.kill()
            await asyncio.sleep(HEARD_S)
            await fleet.leases_end()
            await asyncio.wait_for(asyncio.gather(*running), 30)
        for name, survivor in zip(names, survivors, strict=True):
            await fleet.settled(name, "done")
            attempt = 1 if survivor.events[0].stream_id == survivor.request_id else 2
            assert survivor.text == "".join(f" {attempt}.{number}" for number in range(40))
        rows = await fleet.usage_rows(len(names))
    assert {str(row[0]) for row in rows} == {survivor.request_id for survivor in survivors}
    assert all((row[3] > 0, row[4]) == (True, 40) for row in rows)


async def test_the_spool_of_a_killed_gateway_is_billed_once_when_it_is_back(fleet: Fleet) -> None:
    async with (
        relayed(fleet.database.gateway_url) as relay,
        gateway_added(fleet, database_url=relay.url) as fleet,
    ):
        victim = fleet.gateways[0]
        begun = await begin(fleet, key("spooled"), words=2)
        await relay.cut()
        begun.finish_words()
        assert (await begun.rest()).endswith(b"[DONE]\n\n")  # the usage is on disk, the key's record is not
        assert await fleet.record("spooled") == ("in_flight", 1)
        victim.process.kill()
        await victim.process.wait()
        await asyncio.sleep(HEARD_S)
        await fleet.leases_end()
        with fleet.scripted(paced(WORDS)):
            answer = await fleet.post(STREAMED, key("spooled"), gateway=1)
        assert answer.body.endswith(b"[DONE]\n\n")
        await fleet.usage_rows(1)
        environment = {"SLUICE_SPOOL": str(victim.folder / "spool")}
        async with gateway_added(fleet, environment=environment):
            rows = await fleet.usage_rows(2)
        assert {str(row[0]) for row in rows} == {begun.request_id}
        assert sum(row[3] > 0 for row in rows) == 1
        assert sum(row[4] for row in rows) == 4


async def test_an_owner_that_was_stopped_meanwhile_gives_no_second_answer(fleet: Fleet) -> None:
    async with gateway_added(fleet) as fleet:
        owner = fleet.gateways[0]
        begun = await begin(fleet, RESUMABLE, key("paused"), words=2)
        owner.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(HEARD_S)
        await fleet.leases_end()
        with fleet.scripted(paced(WORDS)):
            answer = await fleet.post(STREAMED, RESUMABLE, key("paused"), gateway=1)
        assert answer.body.endswith(b"[DONE]\n\n")
        owner.process.send_signal(signal.SIGCONT)
        begun.say(" another")
        begun.say(" end")
        begun.finish()
        body = await begun.rest()
        assert b"[DONE]" not in body
        assert b'"code":"gateway_lost"' in body
        for gateway in (0, 1):
            again = await fleet.post(STREAMED, RESUMABLE, key("paused"), gateway=gateway)
            assert again.body == answer.body
        resumed = await fleet.get(f"/v1/streams/{begun.request_id}-2")
        assert resumed.body == answer.body
        rows = await fleet.usage_rows(2)
        assert sum(row[3] > 0 for row in rows) == 1
        assert sum(row[4] for row in rows) == 4
