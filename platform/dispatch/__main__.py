"""`python -m dispatch`: run one dispatcher until SIGTERM or SIGINT.

Where SLUICE_DISPATCH names several, they share a lease in Valkey (REDIS_URL): one is active, others stand by.
"""

import argparse
import asyncio
import logging
import signal
import sys
from dataclasses import dataclass

import uvloop

from config import environment
from dispatch.lease import Lease, LeaseTimes
from dispatch.lease_keeper import Announcer, LeaseKeeper
from dispatch.lease_store import LeaseStore
from dispatch.limits import Limits
from dispatch.server import DispatchServer, monotonic_ms
from gpuworker.wire.messages import PROTOCOL_VERSION, Hello
from gpuworker.wire.tls import WireTls, tls_load
from policy.queue_settings import QueueSettings


@dataclass(frozen=True, slots=True)
class Place:
    """Where this dispatcher listens, and where peers reach it and the others."""

    name: str
    listen: str
    address: str
    others: tuple[str, ...]


async def _run(place: Place, limits: Limits, tls: WireTls | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    secret = environment.wire_secret()
    if not place.others:
        await DispatchServer(secret, limits, name=place.name, tls=tls).serve(place.listen, stop)
        return
    lease = Lease(monotonic_ms())
    server = DispatchServer(secret, limits, name=place.name, lease=lease, tls=tls)
    store = LeaseStore(environment.redis_url(), server.incarnation, place.address, LeaseTimes().valid_ms)
    keeper = LeaseKeeper(lease, store, server, monotonic_ms)

    def hello() -> Hello:
        return Hello(
            version=PROTOCOL_VERSION,
            role="dispatcher",
            id=place.name,
            incarnation=server.incarnation,
            secret=secret,
            term=lease.term,
        )

    announcer = Announcer(lease, place.others, hello, tls, server.term_heard)
    try:
        await server.serve(place.listen, stop, keeper.run, announcer.run)
    finally:
        await keeper.close()


def _place(arguments: argparse.Namespace) -> Place:
    """Raises ValueError, MissingSetting."""
    addresses = environment.dispatch_addresses()
    if not arguments.listen and len(addresses) > 1:
        raise ValueError("SLUICE_DISPATCH names several dispatchers: --listen says which this one is")
    listen = arguments.listen or environment.dispatch_address()
    address = arguments.advertise or listen
    if len(addresses) < 2:
        return Place(arguments.id, listen, address, ())
    if address not in addresses:
        raise ValueError(f"{address} is not in SLUICE_DISPATCH: --advertise says by which address peers come")
    return Place(arguments.id, listen, address, tuple(other for other in addresses if other != address))


def main() -> int:
    parser = argparse.ArgumentParser(prog="dispatch", description="Run one dispatcher.")
    parser.add_argument("--listen", help="unix:/path or tcp://host:port; default: SLUICE_DISPATCH")
    parser.add_argument(
        "--advertise", help="the address in SLUICE_DISPATCH that is this one; default: --listen"
    )
    parser.add_argument("--id", default="dispatcher", help="stable name, for people and certificates")
    parser.add_argument(
        "--queue-depth", type=int, default=QueueSettings().queue_most, help="per model and class, at most"
    )
    parser.add_argument("--no-replica-grace-ms", type=float, default=Limits.no_replica_grace_ms)
    arguments = parser.parse_args()
    if arguments.queue_depth < 1:
        parser.error("--queue-depth must be positive")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        queue = QueueSettings(queue_most=arguments.queue_depth)
        limits = Limits(queue=queue, no_replica_grace_ms=arguments.no_replica_grace_ms)
        uvloop.run(_run(_place(arguments), limits, tls_load(*environment.wire_tls_files())))
    except (environment.MissingSetting, ValueError) as error:
        sys.stderr.write(f"dispatch: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"dispatch: cannot listen: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
