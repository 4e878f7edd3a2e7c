"""Hands each fleet state on: to the Channels group live pages join, and to Valkey for their first render."""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence

import msgspec
from channels.layers import BaseChannelLayer
from redis.asyncio import Redis
from redis.exceptions import RedisError

from gpuworker.wire.messages import FleetState
from modelsvc.controller.backoff import Backoff
from modelsvc.fleet_contracts import (
    CLOCK_SET_BACK_MS,
    FLEET_GROUP,
    FLEET_HISTORY_KEY,
    FLEET_KEY,
    FLEET_KEY_TTL_S,
    HISTORY_POINTS,
    HISTORY_TTL_S,
    DeploymentView,
)

PUBLISH_TIMEOUT_S = 2.0

# Only a newer moment is added: several controllers see the same states. Much older than the newest point is
# a dispatcher's clock that was set back: what was kept then lies in the future and goes.
_HISTORY_ADD = """
local newest = redis.call('LINDEX', KEYS[1], 0)
local ahead_ms = newest and cjson.decode(newest).at_ms - tonumber(ARGV[2]) or -1
if ahead_ms > tonumber(ARGV[5]) then redis.call('DEL', KEYS[1]) elseif ahead_ms >= 0 then return 0 end
redis.call('LPUSH', KEYS[1], ARGV[1])
redis.call('LTRIM', KEYS[1], 0, ARGV[3] - 1)
redis.call('EXPIRE', KEYS[1], ARGV[4])
return 1
"""

logger = logging.getLogger(__name__)


class FleetPublisher:
    """Publishes the newest state; those that arrive while Valkey is slow are replaced, never queued."""

    def __init__(self, layer: BaseChannelLayer, valkey: Redis) -> None:
        self._layer = layer
        self._valkey = valkey
        self._newest: tuple[FleetState, Sequence[DeploymentView]] | None = None
        self._arrived = asyncio.Event()

    def offer(self, state: FleetState, deployments: Sequence[DeploymentView] = ()) -> None:
        self._newest = state, deployments
        self._arrived.set()

    async def run(self) -> None:
        backoff = Backoff("publishing the fleet state", logger)
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            assert self._newest is not None
            try:
                async with asyncio.timeout(PUBLISH_TIMEOUT_S):
                    await self._publish(*self._newest)
                backoff.succeeded()
            except (RedisError, OSError) as error:  # OSError covers the timeout, too
                await backoff.failed(error)

    async def _publish(self, state: FleetState, deployments: Sequence[DeploymentView]) -> None:
        document = state_document(state, deployments)
        async with self._valkey.pipeline(transaction=False) as pipeline:
            pipeline.set(FLEET_KEY, msgspec.json.encode(document), ex=FLEET_KEY_TTL_S)
            pipeline.eval(
                _HISTORY_ADD,
                1,
                FLEET_HISTORY_KEY,
                msgspec.json.encode(history_point(state)),
                state.at_ms,
                HISTORY_POINTS,
                HISTORY_TTL_S,
                CLOCK_SET_BACK_MS,
            )
            await pipeline.execute()
        await self._layer.group_send(FLEET_GROUP, {"type": "fleet.state", "state": document})


def state_document(state: FleetState, deployments: Sequence[DeploymentView] = ()) -> dict[str, object]:
    """A FleetSnapshot: the state by field names, which is an array on the wire."""
    fields = {name: msgspec.to_builtins(getattr(state, name)) for name in state.__struct_fields__}
    return {**fields, "deployments": msgspec.to_builtins(deployments)}


def history_point(state: FleetState) -> dict[str, object]:
    """The figures that charts show over time."""
    queued: Counter[str] = Counter()
    for queue in state.queues:
        queued[queue.klass] += queue.depth
    return {
        "at_ms": state.at_ms,
        "tokens_per_s": state.tokens_per_s,
        "running": sum(worker.running for worker in state.workers),
        "queued": queued,
    }
