"""Two dispatchers and their lease, as real processes: who is active, who follows, what peers see of it."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from devservices.valkey import ValkeyServer
from gpuworker.wire.connection import Connection, listen
from gpuworker.wire.messages import AnyMessage, Heartbeat, Hello, Placed, Refusal, RowKey, Welcome
from gpuworker.wire.tasks import tasks_end
from tests.dispatch.peers import submit
from tests.dispatch.standby_pair import GatewayPeer, Pair, WorkerPeer, until

TAKEOVER_S = 2.0


@pytest.fixture
async def pair(tmp_path: Path, valkey: ValkeyServer) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        pair = Pair(tmp_path, valkey.url, stack)
        for address in pair.each:
            await pair.start(address)
        yield pair


class Peers:
    """A gateway and a worker with two rows: one runs, one waits."""

    def __init__(self, pair: Pair) -> None:
        self.gateway = GatewayPeer(pair.addresses)
        self.worker = WorkerPeer(pair.addresses, max_rows=1)

    async def load(self) -> None:
        await until(lambda: self.worker.joins and self.gateway.joins)
        self.gateway.link.send(submit(1))
        await until(lambda: self.gateway.of(Placed))
        self.gateway.waiting[2] = submit(2)
        self.gateway.link.send(submit(2))

    async def joined_again(self, since: float) -> float:
        """Seconds until both have."""
        await until(lambda: self.worker.joins == 2 and self.gateway.joins == 2)
        return time.monotonic() - since

    async def waiting_served(self) -> None:
        """The one that ran was not run again; the one that waited gets its place."""
        await asyncio.sleep(0.3)
        assert self.worker.runs == [RowKey("g", 1)]
        self.worker.end(RowKey("g", 1))
        await until(lambda: self.worker.runs == [RowKey("g", 2)])


@pytest.fixture
async def peers(pair: Pair) -> AsyncIterator[Peers]:
    peers = Peers(pair)
    await peers.load()
    yield peers
    await tasks_end([peers.gateway.task, peers.worker.task, peers.worker.beat])


async def test_one_is_active_and_the_other_says_so(pair: Pair) -> None:
    active = await pair.active()
    await asyncio.sleep(0.6)
    refusal = await pair.greet(pair.other(active))
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.active) == ("standby", active)
    welcome = await pair.greet(active)
    assert isinstance(welcome, Welcome)
    assert welcome.term == refusal.term > 0


async def test_kill_of_the_active_one(pair: Pair, peers: Peers) -> None:
    active = await pair.active()
    pair.processes[active].kill()
    took_s = await peers.joined_again(time.monotonic())
    print(f"takeover after kill -9: {took_s:.2f} s")
    assert took_s <= TAKEOVER_S
    assert await pair.active() == pair.other(active)
    await peers.waiting_served()


async def test_an_orderly_end_hands_over_at_once(pair: Pair, peers: Peers) -> None:
    active = await pair.active()
    pair.processes[active].terminate()
    assert await peers.joined_again(time.monotonic()) <= 1.2
    await peers.waiting_served()


async def test_one_that_was_stopped_comes_back_as_a_standby(pair: Pair, peers: Peers) -> None:
    active = await pair.active()
    before = await pair.greet(active)
    pair.processes[active].send_signal(signal.SIGSTOP)
    took_s = await peers.joined_again(time.monotonic())
    print(f"takeover after SIGSTOP: {took_s:.2f} s")
    assert took_s <= TAKEOVER_S + 1.0
    pair.processes[active].send_signal(signal.SIGCONT)
    refusal = await pair.greet(active)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "standby"
    after = await pair.greet(pair.other(active))
    assert isinstance(before, Welcome)
    assert isinstance(after, Welcome)
    assert after.term > before.term
    await asyncio.sleep(1)
    assert (peers.worker.joins, peers.gateway.joins) == (2, 2)
    await peers.waiting_served()


async def test_without_valkey_the_active_one_serves_on(
    pair: Pair, peers: Peers, valkey: ValkeyServer
) -> None:
    active = await pair.active()
    os.kill(valkey.pid, signal.SIGSTOP)
    try:
        for _ in range(8):
            await asyncio.sleep(0.5)
            assert isinstance(await pair.greet(active), Welcome)
            assert isinstance(await pair.greet(pair.other(active)), Refusal)
    finally:
        os.kill(valkey.pid, signal.SIGCONT)
    await peers.waiting_served()
    await asyncio.sleep(2)
    assert isinstance(await pair.greet(active), Welcome)
    assert (peers.worker.joins, peers.gateway.joins) == (1, 1)


async def test_a_peer_that_has_seen_a_higher_term_deposes(pair: Pair, peers: Peers) -> None:
    active = await pair.active()
    before = await pair.greet(active)
    assert isinstance(before, Welcome)
    refusal = await pair.greet(active, term=before.term + 1_000_000)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "standby"
    after = await pair.greet(await pair.active())
    assert after.term > before.term + 1_000_000
    await until(lambda: peers.worker.joins == 2)


async def test_who_has_seen_a_later_term_joins_no_older_dispatcher(tmp_path: Path) -> None:
    # Given one that both have joined, and another one that was replaced and does not know
    each = [f"unix:{tmp_path}/{name}" for name in "ab"]
    terms, greeted = dict(zip(each, (7, 5), strict=True)), dict.fromkeys(each, 0)
    connections: list[Connection] = []

    async def welcoming(address: str) -> asyncio.AbstractServer:
        def said(connection: Connection, message: AnyMessage) -> None:
            if isinstance(message, Hello):
                greeted[address] += 1
                connection.send(Welcome(version=1, id="d", incarnation=address, term=terms[address]))
            connection.send(Heartbeat())

        return await listen(address, said, lambda *_: None, connections.append)

    first, second = await welcoming(each[0]), await welcoming(each[1])
    gateway, worker = GatewayPeer(",".join(each)), WorkerPeer(",".join(each))
    await until(lambda: gateway.joins == worker.joins == 1)
    # When the first one goes
    first.close()
    for connection in connections:
        connection.abort("gone")
    # Then nobody joins the other one, until it has a later term
    await until(lambda: greeted[each[1]] >= 6)
    assert gateway.joins == worker.joins == 1
    terms[each[1]] = 8
    await until(lambda: gateway.joins == worker.joins == 2)
    await tasks_end([gateway.task, worker.task, worker.beat])
    second.close()


async def test_where_the_lease_is_misconfigured_it_says_so(tmp_path: Path) -> None:
    variables = {**os.environ, "SLUICE_WIRE_SECRET": "s", "SLUICE_DISPATCH": "unix:/a,unix:/b"}
    for arguments, word in (([], b"--listen"), (["--listen", "unix:/c"], b"--advertise")):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "dispatch", *arguments), env=variables, stderr=asyncio.subprocess.PIPE
        )
        _, said = await process.communicate()
        assert process.returncode == 2
        assert word in said
