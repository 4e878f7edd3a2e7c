"""Compares the fleet with what is deployed, and says where replicas are missing."""

import asyncio
import logging

from asgiref.sync import sync_to_async
from django.db import InterfaceError, OperationalError, close_old_connections

from gpuworker.wire.messages import FleetState
from modelsvc.controller.backoff import Backoff
from modelsvc.deployments import Wanted, deployment_views, deployments_wanted
from modelsvc.fleet_contracts import DeploymentView
from tenants.scoping import operator_scope

LOOK_S = 5.0
SHORT_S = 60.0  # as long as a replica may take to load and warm up

logger = logging.getLogger(__name__)


class DeploymentWatch:
    """Knows what was wanted when PostgreSQL last answered."""

    def __init__(self) -> None:
        self._wanted: list[Wanted] = []
        self._short_since: dict[tuple[str, str], float] = {}  # by digest and role
        self._told: set[tuple[str, str]] = set()

    async def run(self) -> None:
        """Until cancelled."""
        backoff = Backoff("reading deployments", logger)
        while True:
            try:
                self._wanted = await sync_to_async(_read)()
                backoff.succeeded()
            except (OperationalError, InterfaceError) as error:
                await backoff.failed(error)
            await asyncio.sleep(LOOK_S)

    def observe(self, state: FleetState, now_s: float) -> list[DeploymentView]:
        """How each stands. Tells once of one that is short for a while, and when it is whole again."""
        views = deployment_views(self._wanted, state.workers)
        short = {(view.digest, view.role): view for view in views if view.ready < view.wanted}
        self._short_since = {key: self._short_since.get(key, now_s) for key in short}
        for key in self._told - short.keys():
            logger.info("deployment of %s (%s) is whole again", *key)
        self._told &= short.keys()
        for key, view in short.items():
            if key not in self._told and now_s - self._short_since[key] >= SHORT_S:
                self._told.add(key)
                logger.warning(
                    "deployment of %s %s (%s) is short: %d of %d replicas are ready",
                    *(view.model, view.digest[:12], view.role, view.ready, view.wanted),
                )
        return views


def _read() -> list[Wanted]:
    close_old_connections()
    try:
        with operator_scope():
            return deployments_wanted()
    finally:
        close_old_connections()
