"""A primary dies and its replica takes over: however the store is named, the quotas find the new one."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from devservices.valkey import ValkeyServer
from gateway.quotas.addresses import addressed
from gateway.quotas.bounds import QuotaBounds
from tests.gateway.quota_gateways import PATIENT, grant, limit, quotas_started
from tests.gateway.quota_load import Load
from tests.gateway.sentinels import replicated

PER_SECOND = 1_000
QUICK = replace(PATIENT, answer_timeout_s=0.1, connect_timeout_s=0.3, beat_s=0.2)


@pytest.mark.parametrize("way", ["sentinel", "hosts"])
async def test_a_replica_takes_over_under_load(valkey: ValkeyServer, tmp_path: Path, way: str) -> None:
    of = grant(
        limit("tokens_per_minute", PER_SECOND * 60, burst=2_000),
        limit("concurrent_requests", 50),
        limit("spend_per_day", 100_000),
    )
    with replicated(valkey, tmp_path / "servers", with_sentinel=way == "sentinel") as servers:
        url = servers.sentinel_url if way == "sentinel" else servers.hosts_url
        async with quotas_started(url, bounds=QUICK) as one, quotas_started(url, bounds=QUICK) as two:
            load = Load([one, two], of, 2 * PER_SECOND / 50)
            await load.run(1.0)
            servers.primary_kill()
            await load.run(1.0)
            if way == "hosts":
                await asyncio.to_thread(servers.replica().execute_command, "REPLICAOF", "NO", "ONE")
            passed_s = 2.0
            while one._store.is_down or two._store.is_down or passed_s < 5:
                assert passed_s < 20
                await load.run(0.5)
                passed_s += 0.5
            before = load.admitted
            await load.run(1.0)
            assert load.admitted > before
            assert {status for status, _ in load.errors} <= {429}
            assert load.tokens < 2_000 + 400 + 1.1 * PER_SECOND * (passed_s + 1.5)
            assert load.micro_usd <= 100_000
        kept = servers.replica().hgetall(f"sluice:quota:{{{of.tenant_id}}}:tokens_per_minute:::")
        assert kept


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis+sentinel://:hush@one:1,two:2", "the name of the service"),
        ("redis://:hush@one:1,:2/0", "empty host"),
        ("http://:hush@one:1/0", "redis://"),
    ],
)
def test_a_name_that_is_no_store_is_refused_without_its_password(url: str, told: str) -> None:
    with pytest.raises(ValueError, match=told) as caught:
        addressed(url, QuotaBounds())
    assert "hush" not in str(caught.value)
