"""Reads the fleet state that the controller publishes to Valkey. Never writes.

A reader per call: consoles are few and read once a page or once a connection; the live updates that follow
arrive through the channel layer.
"""

from typing import Protocol

import msgspec
import redis
import redis.asyncio

from config.environment import redis_url
from console.contracts import FleetUnavailable
from modelsvc.fleet_contracts import FLEET_HISTORY_KEY, FLEET_KEY, HISTORY_POINTS, FleetPoint, FleetSnapshot

TIMEOUT_S = 2.0
UNREACHABLE = "The state store (Valkey) cannot be reached. Check REDIS_URL and that the server runs."
UNREADABLE = "The stored fleet state cannot be read. Controller and console may be of different versions."


class Raw(Protocol):
    """What a pipeline of GET and LRANGE answers."""

    def __getitem__(self, index: int, /) -> object: ...


def fleet_read() -> tuple[FleetSnapshot | None, list[FleetPoint]]:
    """Latest state (None when nothing was published yet) and its recent history, oldest first."""
    try:
        with (
            redis.Redis.from_url(
                redis_url(), socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
            ) as client,
            client.pipeline(transaction=False) as pipeline,
        ):
            pipeline.get(FLEET_KEY)
            pipeline.lrange(FLEET_HISTORY_KEY, 0, HISTORY_POINTS - 1)
            raw = pipeline.execute()
    except (redis.RedisError, OSError) as error:
        raise FleetUnavailable(UNREACHABLE) from error
    return _decode(raw)


async def fleet_read_async() -> tuple[FleetSnapshot | None, list[FleetPoint]]:
    """The same, for consumers."""
    client = redis.asyncio.Redis.from_url(
        redis_url(), socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S
    )
    try:
        async with client, client.pipeline(transaction=False) as pipeline:
            pipeline.get(FLEET_KEY)
            pipeline.lrange(FLEET_HISTORY_KEY, 0, HISTORY_POINTS - 1)
            raw = await pipeline.execute()
    except (redis.RedisError, OSError) as error:
        raise FleetUnavailable(UNREACHABLE) from error
    return _decode(raw)


def _decode(raw: Raw) -> tuple[FleetSnapshot | None, list[FleetPoint]]:
    state, points = raw[0], raw[1]
    try:
        snapshot = msgspec.json.decode(state, type=FleetSnapshot) if isinstance(state, bytes) else None
        history = [msgspec.json.decode(point, type=FleetPoint) for point in points or []]  # type: ignore[attr-defined]
    except msgspec.MsgspecError as error:
        raise FleetUnavailable(UNREADABLE) from error
    history.reverse()
    return snapshot, history
