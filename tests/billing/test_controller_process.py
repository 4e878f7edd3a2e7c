"""The controller publishes the fleet, gives up bad peers, and runs as a process that ends when told to."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis

from devservices.valkey import ValkeyServer
from gpuworker.wire.messages import DEAD_MS, HEARTBEAT_MS, FleetState
from modelsvc.controller.peer import PeerLost, peer_open
from modelsvc.fleet_contracts import FLEET_HISTORY_KEY, FLEET_KEY, FLEET_KEY_TTL_S
from tests.billing.peers import SECRET, ScriptedDispatcher, ScriptedWorker
from tests.billing.shop import Shop
from tests.billing.stage import Stage

ROOT = Path(__file__).resolve().parents[2]


async def test_fleet_state_is_published_live_and_for_the_first_render(
    stage: Stage, valkey: ValkeyServer
) -> None:
    async with stage.controller(), stage.controller(), Redis.from_url(valkey.url) as client:
        await client.delete(FLEET_HISTORY_KEY)
        states = []
        for _ in range(3):
            states.append(stage.dispatcher.tell([stage.worker.view()], ["g"]))
            live, _ = await stage.published(), await stage.published()  # one from each controller
        stored = msgspec.json.decode(await client.get(FLEET_KEY) or b"")
        assert 0 < await client.pttl(FLEET_KEY) <= FLEET_KEY_TTL_S * 1000
        history = [msgspec.json.decode(point) for point in await client.lrange(FLEET_HISTORY_KEY, 0, -1)]
    assert live == stored
    assert live["workers"][0]["id"] == "worker-0"
    assert live["gateways"] == [{"id": "gateway-0", "incarnation": "g", "streams": 0}]
    assert live.keys() == {*FleetState.__struct_fields__, "deployments"}
    assert live["seq"] == states[-1].seq
    assert history == [
        {"at_ms": state.at_ms, "tokens_per_s": 0.0, "running": 4, "queued": {"interactive": 5}}
        for state in reversed(states)
    ]


async def test_a_silent_peer_is_given_up(tmp_path: Path) -> None:
    worker = ScriptedWorker(tmp_path / "worker.sock")
    await worker.start()
    async with peer_open(worker.address, name="c", incarnation="i", secret=SECRET) as peer:
        assert peer.incarnation == worker.incarnation
        worker.silent = True
        with pytest.raises(PeerLost, match="silent"):
            async with asyncio.timeout(10):
                await peer.receive()
        assert worker.heartbeats >= DEAD_MS // HEARTBEAT_MS - 1
        with pytest.raises(PeerLost, match="silent"):
            await peer.receive()
    await worker.stop()


async def test_a_refused_or_impossible_greeting_is_told(tmp_path: Path) -> None:
    worker = ScriptedWorker(tmp_path / "worker.sock")
    with pytest.raises(PeerLost, match="No such file"):
        async with peer_open(worker.address, name="c", incarnation="i", secret=SECRET):
            pass
    await worker.start()
    with pytest.raises(PeerLost, match="bad_secret"):
        async with peer_open(worker.address, name="c", incarnation="i", secret="wrong"):
            pass
    await worker.stop()


async def test_command_runs_alone_and_ends_at_sigterm(
    shop: Shop, valkey: ValkeyServer, tmp_path: Path
) -> None:
    # given: nobody listens but PostgreSQL and Valkey
    environment = os.environ | {
        "SLUICE_DISPATCH": f"unix:{tmp_path / 'dispatch.sock'}",
        "SLUICE_WIRE_SECRET": SECRET,
        "REDIS_URL": valkey.url,
        "SLUICE_STATE": str(tmp_path),
    }
    dispatcher = ScriptedDispatcher(tmp_path / "dispatch.sock")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "manage.py", "controller", cwd=ROOT, env=environment, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    async with asyncio.timeout(30):
        assert b"trying again" in await process.stderr.readline()
        # when: the dispatcher appears
        await dispatcher.start()
        await dispatcher.joined()
        # then: it is found, and SIGTERM ends the process cleanly
        process.send_signal(signal.SIGTERM)
        _, rest = await process.communicate()
    assert process.returncode == 0, rest
    assert b"Traceback" not in rest
    await dispatcher.stop()
