"""Who is connected to the dispatcher: workers and gateways, and for how long each has been silent."""

from dispatch.fleet import ROLES, Gateway, Worker
from dispatch.limits import Limits
from dispatch.requests import Request
from gpuworker.wire.messages import HEARTBEAT_MS, AnyMessage, Hello


class Members:
    """By incarnation. What they run is the dispatcher's affair."""

    def __init__(self, limits: Limits, now_ms: float) -> None:
        self.workers: dict[str, Worker] = {}
        self.gateways: dict[str, Gateway] = {}
        self._limits = limits
        self._forgiven_ms = now_ms

    def worker_problem(self, hello: Hello, now_ms: float) -> tuple[str, str] | None:
        """Why this worker may not join: code and message of its refusal."""
        capacity = hello.capacity
        if capacity is None or not hello.digest or not hello.address:
            return "bad_role", "a worker must name its digest, address and capacity"
        if hello.serves not in ROLES:
            return "bad_role", f"a worker serves {', '.join(ROLES)}, not {hello.serves!r}"
        if min(capacity.blocks, capacity.block_size, capacity.max_tokens, capacity.max_rows) < 1:
            return "bad_role", "a worker's capacity must be positive"
        if hello.choices and len(hello.choices) != len(hello.running):
            return "bad_role", "a worker must say of every row how many it takes"
        if hello.flows and len(hello.flows) != len(hello.running):
            return "bad_role", "a worker must say of every row whose it is"
        for other in self.workers.values():
            is_other = other.hello.id == hello.id and other.hello.incarnation != hello.incarnation
            if is_other and not other.is_silent(now_ms):
                return "duplicate_id", f"another process is {hello.id}, and alive"
        return None

    def gateway_heard(self, incarnation: str, now_ms: float) -> None:
        if gateway := self.gateways.get(incarnation):
            gateway.heard_ms, gateway.lost_ms = now_ms, None

    def gateway_lost(self, incarnation: str, now_ms: float) -> None:
        """Its connection is gone."""
        if gateway := self.gateways.get(incarnation):
            gateway.lost_ms = now_ms

    def worker_heard(self, incarnation: str, now_ms: float) -> None:
        if worker := self.workers.get(incarnation):
            worker.heard_ms = now_ms

    def waiting(self, digest: str) -> list[Request]:
        """Requests for these weights that were not placed."""
        return [
            request
            for gateway in self.gateways.values()
            for request in gateway.rows.values()
            if not request.worker and request.submit is not None and request.submit.digest == digest
        ]

    def tell_gateways(self, message: AnyMessage) -> None:
        for gateway in self.gateways.values():
            gateway.peer.send(message)

    def tell_workers(self, message: AnyMessage) -> None:
        for worker in self.workers.values():
            worker.peer.send(message)

    # -- time ---------------------------------------------------------------------------------------------

    def forgive(self, now_ms: float) -> None:
        """Time this process did not run is not its peers' silence: what they said then is still unread."""
        absent_ms = now_ms - self._forgiven_ms - HEARTBEAT_MS
        self._forgiven_ms = now_ms
        if absent_ms <= 0:
            return
        for worker in self.workers.values():
            worker.heard_ms = min(now_ms, worker.heard_ms + absent_ms)
        for gateway in self.gateways.values():
            gateway.heard_ms = min(now_ms, gateway.heard_ms + absent_ms)
            if gateway.lost_ms is not None:
                gateway.lost_ms += absent_ms

    def dead_workers(self, now_ms: float) -> list[Worker]:
        return [worker for worker in self.workers.values() if worker.is_dead(now_ms)]

    def gone_gateways(self, now_ms: float) -> list[Gateway]:
        """Disconnected, or silent as if they were, and not back in time."""
        gone = []
        for gateway in self.gateways.values():
            if gateway.lost_ms is None:
                if now_ms - gateway.heard_ms > self._limits.gateway_silence_ms:
                    gateway.lost_ms = now_ms
            elif now_ms - gateway.lost_ms > self._limits.gateway_grace_ms:
                gone.append(gateway)
        return gone
