"""Only its tenant reads a log, and only what was written there."""

from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import uuid4

import pytest
import pytest_asyncio
import redis

from devservices.valkey import ValkeyServer
from gateway.answer_parts import Row
from gateway.token_log.log import TokenLog
from tenants.data_keys import data_key_generate
from tests.gateway.token_logs import Request, end, nothing, running, token, until


@pytest_asyncio.fixture
async def log(valkey: ValkeyServer) -> AsyncIterator[TokenLog]:
    async with running(valkey.url) as log:
        yield log


async def test_another_tenant_reads_nothing(log: TokenLog, valkey: ValkeyServer) -> None:
    request = Request()
    writer = request.write(log)
    writer.append(Row(0, 1, "the secret of tenant one"), nothing)
    writer.append(end(1), nothing)
    assert await writer.close()
    wrong_key = replace(request, data_key=data_key_generate())
    wrong_tenant = replace(request, tenant_id=uuid4())
    for stranger, reason in ((wrong_key, "unreadable"), (wrong_tenant, "gone")):
        assert await stranger.find(log) is None
        reading = stranger.follow(log)
        await reading.ended()
        assert (reading.entries, reading.lost) == ([], [reason])
    with redis.Redis.from_url(valkey.url, protocol=2) as client:
        raw = b"".join(sealed for _, fields in client.xrange(request.key) for sealed in fields.values())
    assert b"secret" not in raw
    assert b"tiny" not in raw


@pytest.mark.parametrize("change", ["bit", "swap", "hole", "attempt", "request"])
async def test_altered_entries_are_refused(log: TokenLog, valkey: ValkeyServer, change: str) -> None:
    request, victim = Request(), Request()
    victim.tenant_id, victim.data_key = request.tenant_id, request.data_key
    writer = request.write(log)
    for number in range(3):
        writer.append(token(number), nothing)
        await until(lambda: not log.unconfirmed_bytes)
    with redis.Redis.from_url(valkey.url, protocol=2) as client:
        blocks = {
            position: fields[b"b"] for position, (_, fields) in enumerate(client.xrange(request.key), 1)
        }
        assert len(blocks) >= 3
        target, attempt = request, 1
        match change:
            case "bit":
                blocks[2] = blocks[2][:-1] + bytes((blocks[2][-1] ^ 1,))
            case "swap":
                blocks[2], blocks[3] = blocks[3], blocks[2]
            case "hole":
                del blocks[2]
            case "attempt":
                attempt = 2
            case "request":
                target = victim
        client.delete(request.key)
        for position, block in blocks.items():
            client.xadd(target.key, {b"b": block}, id=f"{attempt}-{position}")
    reading = target.follow(log, attempt)
    await reading.ended()
    assert reading.lost == ["unreadable"]
    assert token(2) not in reading.entries
