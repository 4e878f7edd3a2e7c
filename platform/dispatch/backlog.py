"""All waiting requests, by model version and class, and since when a version has nobody to serve it.

A version that nobody serves and nobody asks for is forgotten: rollouts leave nothing behind.
"""

from collections.abc import Iterator

from dispatch.queues import CLASSES, Queue, Request
from gpuworker.wire.messages import QueueView

FORGET_MS = 600_000  # until then a request for a version that lost its last replica is refused sooner


class Backlog:
    def __init__(self) -> None:
        self._queues: dict[tuple[str, str], Queue] = {}  # (digest, class)
        self._models: dict[str, str] = {}  # digest -> slug, for people
        self._unserved_ms: dict[str, float] = {}  # digest -> since when no replica holds it

    def digest_add(self, digest: str, model: str) -> None:
        self._models[digest] = model
        for klass in CLASSES:
            self._queues.setdefault((digest, klass), Queue())

    @property
    def digests(self) -> list[str]:
        return list(self._models)

    def queue(self, digest: str, klass: str) -> Queue:
        """Raises KeyError for a digest that was not added."""
        return self._queues[digest, klass]

    def push(self, request: Request) -> None:
        assert request.submit is not None
        self.digest_add(request.submit.digest, request.submit.model)
        self._queues[request.submit.digest, request.klass].push(request)

    def remove(self, request: Request) -> None:
        """Ignores a request that does not wait."""
        if request.submit is not None and (queue := self._queues.get((request.submit.digest, request.klass))):
            queue.remove(request.row)

    def late(self, now_ms: float) -> list[Request]:
        """Requests whose deadline passed while they waited; they wait no more."""
        return self._take(r for q in self._queues.values() for r in q if r.deadline_ms <= now_ms)

    def unserved(self, served: set[str], grace_ms: float, now_ms: float) -> list[Request]:
        """Requests for versions without a replica for longer than the grace; they wait no more."""
        hopeless: list[Request] = []
        for digest in self.digests:
            if digest in served:
                self._unserved_ms.pop(digest, None)
                continue
            unserved_ms = now_ms - self._unserved_ms.setdefault(digest, now_ms)
            queues = [self._queues[digest, klass] for klass in CLASSES]
            if unserved_ms >= grace_ms:
                hopeless += self._take(request for queue in queues for request in queue)
            if unserved_ms >= max(FORGET_MS, grace_ms):
                self._forget(digest)
        return hopeless

    def views(self, now_ms: float) -> list[QueueView]:
        return [
            QueueView(
                model=self._models[digest], klass=klass, depth=len(queue), oldest_ms=queue.oldest_ms(now_ms)
            )
            for (digest, klass), queue in sorted(self._queues.items())
        ]

    def _take(self, requests: Iterator[Request]) -> list[Request]:
        taken = list(requests)
        for request in taken:
            self.remove(request)
        return taken

    def _forget(self, digest: str) -> None:
        del self._models[digest]
        del self._unserved_ms[digest]
        for klass in CLASSES:
            del self._queues[digest, klass]
