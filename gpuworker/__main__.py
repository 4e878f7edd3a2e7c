"""`python -m gpuworker`: one worker process, from its weights to its exit status.

Status 0: drained. 1: failed while serving, start it again. 2: cannot serve as it was started.
"""

import asyncio
import logging
import os
import signal
import sys

import uvloop

from gpuworker.backends.base import Backend, BackendError
from gpuworker.backends.engine_backend import EngineBackend
from gpuworker.engine.engine import CacheOptions, Engine
from gpuworker.epoch import epoch_next
from gpuworker.manifest import Manifest, WeightsMismatch, manifest_verify
from gpuworker.options import Options, options_parse
from gpuworker.server import Settings, WorkerFailed, WorkerServer
from gpuworker.upstream_terms import KEY_VARIABLE, KINDS
from gpuworker.usage_journal import UsageJournal, WorkerIdentity
from gpuworker.wire.journal import Journal, JournalFailed
from gpuworker.wire.messages import new_incarnation
from gpuworker.wire.prefix_secret import prefix_secret
from gpuworker.wire.tls import TlsError, WireTls, tls_from
from policy.pacing import StepPacer

logger = logging.getLogger("gpuworker")


class _OneLineFormatter(logging.Formatter):
    """A record is one line, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\r", "\\r").replace("\n", "\\n")


def _logging_start(worker: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLineFormatter(f"%(asctime)s %(levelname)s {worker} %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _backend_build(options: Options, manifest: Manifest, secret: str) -> Backend:
    if options.backend in KINDS:
        from gpuworker.backends.external.build import backend_build

        return backend_build(options, manifest, prefix_secret(secret), os.environ.pop(KEY_VARIABLE, ""))
    return EngineBackend(_engine_build(options, manifest, secret), max_rows=options.max_rows)


def _engine_build(options: Options, manifest: Manifest, secret: str) -> Engine:
    target_ms = options.target_itl_ms
    pacer = StepPacer(target_ms) if target_ms is not None else None
    cache = CacheOptions(
        secret=prefix_secret(secret),
        is_shared=options.has_prefix_cache,
        host_blocks=options.host_kv_blocks,
    )
    sizes = {"blocks": options.kv_blocks, "max_rows": options.max_rows}
    if options.backend == "scripted":
        from gpuworker.backends.scripted import engine_build as scripted_build

        return scripted_build(
            options.weights, manifest, pacer=pacer, cache=cache, step_ms=options.step_ms, **sizes
        )
    from gpuworker.backends.native import engine_build as native_build  # brings torch: seconds, and memory

    return native_build(
        options.weights,
        manifest,
        pacer=pacer,
        cache=cache,
        dtype=options.dtype,
        threads=options.threads,
        ranks=options.tensor_parallel,
        **sizes,
    )


async def _serve(
    options: Options,
    secret: str,
    manifest: Manifest,
    backend: Backend,
    journal: Journal,
    tls: WireTls | None,
    epoch: int,
) -> None:
    stop = asyncio.Event()

    def stop_or_exit(number: int) -> None:
        if stop.is_set():
            logger.warning("second signal, exiting at once")
            os._exit(128 + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop_or_exit, number)
    identity = WorkerIdentity(options.id, new_incarnation(), options.model, manifest.digest, epoch)
    settings = Settings(
        options.dispatch,
        options.listen,
        secret,
        options.drain_s,
        serves=options.role,
        labels=options.labels,
        gateways=options.gateways,
        tls=tls,
    )
    try:
        await WorkerServer(settings, identity, backend, UsageJournal(journal, identity)).serve(stop)
    finally:
        await journal.close()


def main() -> int:
    options = options_parse(sys.argv[1:])
    _logging_start(options.id)
    secret = os.environ.get("SLUICE_WIRE_SECRET", "")
    if not secret:
        logger.error("SLUICE_WIRE_SECRET is not set")
        return 2
    try:
        tls = tls_from(os.environ)
        manifest = manifest_verify(options.weights)
        backend = _backend_build(options, manifest, secret)
        journal = Journal.open(options.spool)
        epoch = epoch_next(options.spool)
    except (WeightsMismatch, BackendError, JournalFailed, TlsError) as error:
        logger.error("cannot start: %s", error)
        return 2
    try:
        uvloop.run(_serve(options, secret, manifest, backend, journal, tls, epoch))
    except (WorkerFailed, BackendError, OSError, ValueError) as error:
        logger.critical("failed, exiting: %s", error)
        return 1
    logger.info("drained, exiting")
    return 0


if __name__ == "__main__":
    sys.exit(main())
