"""Joins the controller's pieces: a fleet state feeds publication, collection, levels and the reaper."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
from channels.layers import BaseChannelLayer
from psycopg_pool import AsyncConnectionPool
from redis.asyncio import Redis

from billing.presence import Presence
from billing.reaper import reap
from gpuworker.wire.messages import FleetState, new_incarnation
from gpuworker.wire.tasks import tasks_end
from gpuworker.wire.tls import WireTls
from modelsvc.controller.backoff import Backoff
from modelsvc.controller.collector import COLLECT_INTERVAL_S, Pool, UsageCollector
from modelsvc.controller.deployments import DeploymentWatch
from modelsvc.controller.fleet import fleet_follow
from modelsvc.controller.levels import LevelWatch
from modelsvc.controller.publisher import FleetPublisher

REAP_INTERVAL_S = 5.0
_MAX_CONNECTIONS = 4
_CONNECTION_TIMEOUT_S = 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """`database_url` is the operators' role: it may store the usage of every tenant."""

    dispatch_address: str
    wire_secret: str
    database_url: str
    redis_url: str
    tls: WireTls | None = None
    name: str = "controller"
    reap_interval_s: float = REAP_INTERVAL_S
    collect_interval_s: float = COLLECT_INTERVAL_S


async def controller_run(
    settings: ControllerSettings,
    layer: BaseChannelLayer,
    stop: asyncio.Event,
    clock: Callable[[], float] | None = None,
) -> None:
    """Until `stop`. Peers, PostgreSQL and Valkey may come and go; `clock` is monotonic, in seconds."""
    now_s = clock or asyncio.get_running_loop().time
    greeting = {"name": settings.name, "incarnation": new_incarnation(), "secret": settings.wire_secret}
    gateways, workers = Presence(), Presence()
    pool: Pool = AsyncConnectionPool(
        settings.database_url,
        kwargs={"autocommit": True, "application_name": settings.name},
        min_size=0,
        max_size=_MAX_CONNECTIONS,
        timeout=_CONNECTION_TIMEOUT_S,
        check=AsyncConnectionPool.check_connection,
        open=False,
    )
    async with pool, Redis.from_url(settings.redis_url) as valkey, asyncio.TaskGroup() as group:
        publisher = FleetPublisher(layer, valkey)
        levels, deployments = LevelWatch(settings.name), DeploymentWatch()
        collector = UsageCollector(
            pool, group, interval_s=settings.collect_interval_s, tls=settings.tls, **greeting
        )

        def observe(state: FleetState) -> None:
            gateways.observe((gateway.incarnation for gateway in state.gateways), now_s())
            workers.observe((worker.incarnation for worker in state.workers), now_s())
            collector.workers_set(state.workers)
            publisher.offer(state, deployments.observe(state, now_s()))
            levels.observe(state)

        async def reap_regularly() -> None:
            backoff = Backoff("reaper", logger)
            # Not `while True`: asyncio.wait_for (psycopg uses it) may swallow a cancellation on Python 3.11.
            while not stop.is_set():
                await asyncio.sleep(settings.reap_interval_s)
                try:
                    async with pool.connection() as conn:
                        billed = await reap(conn, gateways, workers, now_s())
                    backoff.succeeded()
                    if billed:
                        logger.warning("reaper: billed %d requests of lost gateways", billed)
                except psycopg.Error as error:
                    await backoff.failed(error)

        running = [
            group.create_task(
                fleet_follow(settings.dispatch_address, on_state=observe, tls=settings.tls, **greeting)
            ),
            group.create_task(publisher.run()),
            group.create_task(levels.run()),
            group.create_task(deployments.run()),
            group.create_task(reap_regularly()),
        ]
        await stop.wait()
        await tasks_end(running)
        collector.workers_set(())
