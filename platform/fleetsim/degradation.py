"""What the gateway does with a request before it is queued: quotas, and what its degradation level gives up.

Shorter outputs from level 3, the smaller model for tenants who accept it from level 4, a batch job for those
who accept that at level 5. The level is the queue's, fixed at admission.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from fleetsim.clients import Clients
from fleetsim.request import Request
from fleetsim.rows import BATCH
from policy.bucket import Bucket
from policy.flow import Flow
from policy.output_estimate import OutputEstimates
from policy.waiting import Refusal

SHORTER, SMALLER, JOBS = 3, 4, 5  # levels from which on
JOB_DEADLINE_MS = 24 * 3_600_000

Submit = Callable[[Request], None]


@dataclass(slots=True)
class Degraded:
    """Requests that got less than they asked for."""

    shorter: int = 0
    smaller: int = 0
    jobs: int = 0
    over_quota: int = 0


@dataclass(slots=True)
class FrontDoor:
    """`smaller`: where requests for the smaller model go; None: there is none. `tokens_per_minute`: of every
    tenant; 0: no quota."""

    clients: Clients
    estimates: OutputEstimates
    model: str
    tokens_per_minute: int = 0
    smaller: Submit | None = None
    degraded: Degraded = field(default_factory=Degraded)
    _buckets: dict[str, Bucket] = field(default_factory=dict)
    _reserved: dict[int, int] = field(default_factory=dict)  # tokens, by the request's number

    def reserve(self, request: Request, now_ms: float) -> Refusal | None:
        """Takes what the request is expected to use of its tenant's quota, or says when there is enough."""
        if not self.tokens_per_minute:
            return None
        tenant, at_ms = request.arrival.tenant, int(now_ms)
        bucket = self._buckets.setdefault(
            tenant, Bucket(self.tokens_per_minute, self.tokens_per_minute, at_ms)
        )
        expected = self.estimates.expected(tenant, self.model, request.arrival.max_tokens)
        amount = request.arrival.prompt_tokens + expected
        if bucket.take(amount, at_ms):
            self._reserved[request.number] = amount
            return None
        self.degraded.over_quota += 1
        wait_ms = bucket.wait_ms(amount, at_ms) or 0
        return Refusal("tokens_per_minute", "", wait_ms, amount, self.tokens_per_minute, "tokens_per_minute")

    def settle(self, request: Request, now_ms: float) -> None:
        """It ended, or was refused after all: what it did not use goes back."""
        reserved = self._reserved.pop(request.number, 0)
        if reserved:
            used = request.arrival.prompt_tokens + request.output_tokens if request.first_us else 0
            self._buckets[request.arrival.tenant].settle(reserved - used, int(now_ms))

    def degrade(self, request: Request, level: int) -> Submit | None:
        """What the level gives up. Where the request goes instead, if somewhere else."""
        request.level = level
        if request.arrival.klass == BATCH:
            return None
        tenant = request.arrival.tenant
        if level >= JOBS and self.clients.accepts_batch(tenant):
            request.flow = Flow(tenant, BATCH)
            request.deadline_us = request.submitted_us + JOB_DEADLINE_MS * 1000
            self.degraded.jobs += 1
            return None
        if level >= SHORTER:
            expected = self.estimates.expected(tenant, self.model, request.arrival.max_tokens)
            if expected < request.output_tokens:
                request.output_tokens = expected
                self.degraded.shorter += 1
        if level >= SMALLER and self.smaller and self.clients.accepts_smaller_model(tenant):
            self.degraded.smaller += 1
            return self.smaller
        return None
