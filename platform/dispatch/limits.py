"""How much may wait for how long at the dispatcher."""

from dataclasses import dataclass, field

from policy.queue_settings import QueueSettings


@dataclass(frozen=True)
class Limits:
    queue: QueueSettings = field(default_factory=QueueSettings)  # of each model version
    no_replica_grace_ms: float = 30_000  # how long requests wait for a model without any replica
    gateway_silence_ms: float = 5_000  # a gateway that says nothing this long counts as disconnected
    gateway_grace_ms: float = 2_000  # how long a gateway may be disconnected before its requests end
    rejoin_grace_ms: float = 5_000  # after start: rows that workers already run are believed
    max_wait_ms: int = 3_600_000  # bounds the ages and deadlines that gateways state
