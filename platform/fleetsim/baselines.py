"""What others do, to compare with: first come first served, and virtual token counters without pausing.

Both know neither deadlines nor levels and refuse nobody. `Queue` is what the fleet asks of a queue: these,
and `policy.model_queue.ModelQueue`.
"""

from collections import Counter, deque
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Protocol

from policy.flow import Flow
from policy.placement import Replica, blocks_needed, placement_choose
from policy.router_index import PrefixHolders
from policy.shares import VirtualTime
from policy.waiting import LevelChange, Placement, Refusal, Waiting

PROMPT_TOKEN_MS = 0.1  # charged when a prompt is placed; what was really used follows with the next report


class Queue(Protocol):
    @property
    def level(self) -> int: ...
    @property
    def prefixes(self) -> PrefixHolders: ...
    def submit(self, waiting: Waiting, now_ms: float) -> Refusal | None: ...
    def requeue(self, waiting: Waiting, now_ms: float) -> None: ...
    def take(self, now_ms: float) -> Placement | None: ...
    def expired(self, now_ms: float) -> list[Waiting]: ...
    def prefilled(self, key: Hashable) -> None: ...
    def ended(self, key: Hashable, now_ms: float) -> None: ...
    def worked(self, replica_key: str, flow: Flow, total_us: int) -> None: ...
    def replicas_set(self, replicas: Sequence[Replica]) -> None: ...
    def replica_update(self, replica: Replica) -> None: ...
    def replica_gone(self, key: str) -> Sequence[Waiting]: ...
    def tick(self, now_ms: float) -> list[LevelChange]: ...
    def over_share(self) -> frozenset[Flow]: ...
    def depth(self, klass: str) -> int: ...


class PlainQueue:
    """`is_fair`: the tenant that was served least is next (Sheng et al., OSDI 2024), charged its prompt when
    it is placed and everything else as it is produced; otherwise in order of arrival."""

    level = 0

    def __init__(self, *, is_fair: bool) -> None:
        self._is_fair = is_fair
        self.prefixes = PrefixHolders()  # it hears of them and does not care
        self._waiting: dict[Flow, deque[Waiting]] = {}
        self._placed: dict[Hashable, Placement] = {}
        self._replicas: dict[str, Replica] = {}
        self._rows: Counter[Flow] = Counter()
        self._time: VirtualTime[Flow] = VirtualTime(max_lag_ms=1e12)
        self._prepaid: Counter[Flow] = Counter()  # microseconds
        self._total_us: Counter[tuple[str, Flow]] = Counter()

    def submit(self, waiting: Waiting, now_ms: float) -> Refusal | None:
        flow = self._flow(waiting)
        self._rows[flow] += 1
        self._time.activate(flow, waiting.weight)
        self._waiting.setdefault(flow, deque()).append(waiting)
        return None

    def requeue(self, waiting: Waiting, now_ms: float) -> None:
        self._placed.pop(waiting.key, None)
        self._waiting.setdefault(self._flow(waiting), deque()).appendleft(waiting)

    def take(self, now_ms: float) -> Placement | None:
        for flow in sorted(self._waiting, key=lambda flow: (self._time.of(flow), flow)):
            head = self._waiting[flow][0]
            room = (r for r in self._replicas.values() if not r.row_limit or r.rows < r.row_limit)
            replica = placement_choose(room, head.prompt_tokens)
            if replica is None:
                continue
            self._waiting[flow].popleft()
            if not self._waiting[flow]:
                del self._waiting[flow]
            self._time.charge(flow, PROMPT_TOKEN_MS * head.new_tokens)
            self._prepaid[flow] += round(1000 * PROMPT_TOKEN_MS * head.new_tokens)
            self._replicas[replica.key] = replace(
                replica,
                rows=replica.rows + 1,
                pending_prefill_tokens=replica.pending_prefill_tokens + head.new_tokens,
                free_blocks=replica.free_blocks - blocks_needed(head.prompt_tokens + 1, replica.block_size),
            )
            placement = self._placed[head.key] = Placement(head, replica.key)
            return placement
        return None

    def expired(self, now_ms: float) -> list[Waiting]:
        return []

    def prefilled(self, key: Hashable) -> None:
        return

    def ended(self, key: Hashable, now_ms: float) -> None:
        if placement := self._placed.pop(key, None):
            flow = self._flow(placement.waiting)
            self._rows[flow] -= 1
            if not self._rows[flow]:
                del self._rows[flow]
                self._time.deactivate(flow)

    def worked(self, replica_key: str, flow: Flow, total_us: int) -> None:
        new_us = total_us - self._total_us[replica_key, flow]
        self._total_us[replica_key, flow] = total_us
        paid_us = min(new_us, self._prepaid[flow])
        self._prepaid[flow] -= paid_us
        if flow in self._rows:
            self._time.charge(flow, (new_us - paid_us) / 1000)

    def replicas_set(self, replicas: Sequence[Replica]) -> None:
        self._replicas = {replica.key: replica for replica in replicas}

    def replica_update(self, replica: Replica) -> None:
        self._replicas[replica.key] = replica

    def replica_gone(self, key: str) -> Sequence[Waiting]:
        self._replicas.pop(key, None)
        return [placement.waiting for placement in self._placed.values() if placement.replica == key]

    def tick(self, now_ms: float) -> list[LevelChange]:
        return []

    def over_share(self) -> frozenset[Flow]:
        return frozenset()

    def depth(self, klass: str) -> int:
        return sum(len(waiting) for flow, waiting in self._waiting.items() if flow.klass == klass)

    def _flow(self, waiting: Waiting) -> Flow:
        return waiting.flow if self._is_fair else Flow("", waiting.flow.klass)
