"""`python -m dispatch`: run one dispatcher until SIGTERM or SIGINT."""

import argparse
import asyncio
import logging
import signal
import sys

import uvloop

from config import environment
from dispatch.limits import Limits
from dispatch.server import DispatchServer
from policy.queue_settings import QueueSettings


async def _run(address: str, limits: Limits) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await DispatchServer(environment.wire_secret(), limits).serve(address, stop)


def main() -> int:
    parser = argparse.ArgumentParser(prog="dispatch", description=__doc__)
    parser.add_argument("--listen", help="unix:/path or tcp://host:port; default: SLUICE_DISPATCH")
    parser.add_argument(
        "--queue-depth", type=int, default=QueueSettings().queue_most, help="per model and class, at most"
    )
    parser.add_argument("--no-replica-grace-ms", type=float, default=Limits.no_replica_grace_ms)
    arguments = parser.parse_args()
    if arguments.queue_depth < 1:
        parser.error("--queue-depth must be positive")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        address = arguments.listen or environment.dispatch_address()
        queue = QueueSettings(queue_most=arguments.queue_depth)
        limits = Limits(queue=queue, no_replica_grace_ms=arguments.no_replica_grace_ms)
        uvloop.run(_run(address, limits))
    except environment.MissingSetting as error:
        sys.stderr.write(f"dispatch: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"dispatch: cannot listen: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
