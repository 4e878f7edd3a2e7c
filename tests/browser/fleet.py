"""Fleet states for the console's tests, and a controller that publishes them as the real one does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import redis.asyncio
from channels.layers import get_channel_layer

from gpuworker.wire.messages import FleetState, GatewayView, QueueView, WorkerView
from gpuworker.wire.tasks import tasks_end
from modelsvc.controller.publisher import FleetPublisher

MODEL = "smollm2-135m"
AT_MS = 1_780_000_000_000


def worker(number: int, **changes: Any) -> WorkerView:
    figures: dict[str, Any] = {
        "id": f"worker-{number}",
        "incarnation": f"{number:032x}",
        "model": MODEL,
        "digest": "9f3c51e0d2ab77" + "0" * 50,
        "address": "",
        "state": "ready",
        "running": 12,
        "waiting": 1,
        "pending_prefill_tokens": 384,
        "blocks": 1_024,
        "free_blocks": 512,
        "block_size": 16,
        "batch_rows": 11,
        "step": 9_000,
        "step_ms": 81.4,
        "tokens_per_s": 148.2,
        "preemptions": 2,
        "age_ms": 120,
    }
    return WorkerView(**(figures | changes))


def fleet(workers: list[WorkerView], *, at_ms: int = AT_MS, queued: int = 3, seq: int = 1) -> FleetState:
    return FleetState(
        seq=seq,
        at_ms=at_ms,
        workers=workers,
        queues=[
            QueueView(model=MODEL, klass="batch", depth=7 * queued, oldest_ms=74_210),
            QueueView(model=MODEL, klass="interactive", depth=queued, oldest_ms=240),
        ],
        gateways=[GatewayView(id="gateway-0", incarnation="6f1c2d9e" + "0" * 24, streams=21)],
        submitted=18_204,
        refused=12,
        tokens_per_s=sum(worker.tokens_per_s for worker in workers),
    )


@asynccontextmanager
async def controller(redis_url: str) -> AsyncIterator[FleetPublisher]:
    """The real publisher, on the real channel layer; `offer` a state to have it published."""
    layer: Any = get_channel_layer()
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        publisher = FleetPublisher(layer, client)
        running = asyncio.create_task(publisher.run())
        try:
            yield publisher
        finally:
            await tasks_end([running])
            await layer.close_pools()
