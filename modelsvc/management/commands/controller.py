"""`manage.py controller`: watches the fleet, collects usage from workers, bills what dead gateways left."""

import asyncio
import signal
from typing import Any

from channels.layers import get_channel_layer
from django.core.management.base import BaseCommand

from config import environment
from gpuworker.wire.tls import tls_load
from modelsvc.controller.runner import ControllerSettings, controller_run


class Command(BaseCommand):
    help = "Run the controller until SIGTERM. More than one may run; they do not get in each other's way."

    def handle(self, *args: Any, **options: Any) -> None:
        settings = ControllerSettings(
            dispatch_address=environment.dispatch_address(),
            wire_secret=environment.wire_secret(),
            tls=tls_load(*environment.wire_tls_files()),
            database_url=environment.operator_database_url(),
            redis_url=environment.redis_url(),
        )
        asyncio.run(_run(settings))


async def _run(settings: ControllerSettings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    layer = get_channel_layer()
    assert layer is not None  # settings.CHANNEL_LAYERS has a default
    await controller_run(settings, layer, stop)
