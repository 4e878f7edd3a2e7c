"""The queue of each model version, the workers that hold it, and since when there are none.

A version that nobody serves and nobody asks for is forgotten: rollouts leave nothing behind.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from dispatch.fleet import Worker
from dispatch.leads import Leads
from dispatch.limits import Limits
from dispatch.prefixes import chains_of
from dispatch.requests import Request
from gpuworker.wire.messages import Submit
from policy.flow import CLASSES, Flow
from policy.model_queue import ModelQueue
from policy.prefix import Chain

FORGET_MS = 600_000  # until then a request for a version that lost its last replica is refused sooner


@dataclass(slots=True, eq=False)
class Version:
    """One set of weights. `holders`: workers that run rows on them, by incarnation, whatever their state."""

    digest: str
    model: str  # slug, for people
    queue: ModelQueue
    holders: dict[str, Worker] = field(default_factory=dict)
    unserved_since_ms: float | None = None
    over: frozenset[Flow] = frozenset()  # as workers were told
    looked_ms: float = -math.inf  # when `over` was last compared, when workers were told of it,
    told_over_ms: float = -math.inf  # and gateways of the level
    told_level_ms: float = -math.inf

    @property
    def is_waited_for(self) -> bool:
        return any(self.queue.depth(klass) for klass in CLASSES)

    def chains(self, submit: Submit) -> tuple[Chain, ...]:
        """Names of its prompt's prefixes, as the replicas there are name them."""
        return chains_of((worker.prefixes for worker in self.holders.values()), submit)

    def replicas_refresh(self, now_ms: float) -> None:
        """Silence and pauses begin and end without a message."""
        for worker in self.holders.values():
            if worker.may_take(now_ms) != worker.takes_more:
                self.replica_update(worker, now_ms)

    def replica_update(self, worker: Worker, now_ms: float) -> None:
        worker.takes_more = worker.may_take(now_ms)
        self.queue.replica_update(worker.replica())


class Versions:
    """By digest. `leads` are those of the dispatcher before."""

    def __init__(self, limits: Limits, rng: Random, leads: Leads) -> None:
        self._limits = limits
        self._rng = rng
        self._leads = dict(leads)
        self._versions: dict[str, Version] = {}

    def __iter__(self) -> Iterator[Version]:
        return iter(list(self._versions.values()))

    def get(self, digest: str) -> Version | None:
        return self._versions.get(digest)

    def add(self, digest: str, model: str, now_ms: float) -> Version:
        """The one there is, or a new one. Its name is what was said last."""
        version = self._versions.get(digest)
        if version is None:
            queue = ModelQueue(self._limits.queue, now_ms, self._rng)
            if leads := self._leads.pop(digest, None):
                queue.resume(leads)
            version = self._versions[digest] = Version(digest, model, queue)
        version.model = model
        return version

    def unqueue(self, request: Request) -> None:
        """Ignores a request that does not wait."""
        if request.submit is not None and (version := self._versions.get(request.submit.digest)):
            version.queue.remove(request)

    def hopeless(self, now_ms: float) -> list[Version]:
        """Versions without a replica for longer than the grace: nothing should wait for them. They are
        forgotten after a while."""
        found = []
        for version in self:
            if version.holders:
                version.unserved_since_ms = None
                continue
            if version.unserved_since_ms is None:
                version.unserved_since_ms = now_ms
            unserved_ms = now_ms - version.unserved_since_ms
            if unserved_ms >= self._limits.no_replica_grace_ms:
                found.append(version)
            if unserved_ms >= max(FORGET_MS, self._limits.no_replica_grace_ms):
                del self._versions[version.digest]
        return found
