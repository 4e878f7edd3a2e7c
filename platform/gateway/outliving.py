"""A generation whose client is gone goes on while somebody follows its token log, and for a grace period."""

import asyncio
import time

from gateway.job import Job
from gateway.runtime import Gateway

_CHECK_S = 1.0


async def outlive(gateway: Gateway, job: Job, grace_s: float) -> None:
    """Cancels the job when nobody has listened for `grace_s` seconds, or at once when a client said so."""
    tenant_id, log = job.grant.tenant_id, gateway.token_log
    alone_since = time.monotonic()
    while not job.is_concluding:
        if await log.is_cancelled(tenant_id, job.request_id):
            break
        now = time.monotonic()
        if await log.has_listeners(tenant_id, job.request_id):
            alone_since = now
        elif now - alone_since >= grace_s:
            break
        await asyncio.sleep(min(_CHECK_S, max(grace_s, 0.05)))
    job.cancel("cancelled")
