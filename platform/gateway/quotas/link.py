"""One tenant's calls to the store: one at a time, and each executed exactly once.

A call whose answer was lost is sent again, unchanged, before any other. So what the store granted meanwhile
is found, and nothing is charged twice. Callers hold the tenant's lock.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from gateway.quotas.scripts import RESERVE, SETTLE, Script
from gateway.quotas.store import Arg, QuotaStore, now_ms

OVERTAKEN = -2

Reply = list[Any]  # the status, then what the script says of each limit


@dataclass(frozen=True, slots=True)
class _Call:
    script: Script
    keys: tuple[bytes, ...]
    arguments: tuple[Arg, ...]
    apply: Callable[[Reply, int], None]


class Link:
    """`name` is this gateway's for this tenant, and never used again. `on_loss` hears that the store lost
    what it knew of the tenant: before new grants are counted, and after what the store was just told."""

    def __init__(self, store: QuotaStore, tenant_id: UUID, name: str, on_loss: Callable[[], None]) -> None:
        self._store = store
        self._prefix = f"sluice:quota:{{{tenant_id}}}:"
        self._name = name
        self._on_loss = on_loss
        self._sequence = 0
        self._epoch: bytes | None = None
        self._unanswered: _Call | None = None

    def key(self, *parts: str) -> bytes:
        """All keys of a tenant lie in one slot of a cluster."""
        return (self._prefix + ":".join(parts)).encode()

    @property
    def is_clear(self) -> bool:
        """Nothing is in doubt."""
        return self._unanswered is None

    async def clear(self) -> None:
        """What was cut off is asked for again. Raises StoreAway. To be awaited before a call is composed."""
        if self._unanswered is not None:
            await self._send(self._unanswered)

    async def call(
        self,
        script: Script,
        keys: Sequence[bytes],
        arguments: Sequence[Arg],
        apply: Callable[[Reply, int], None],
    ) -> None:
        """`apply` gets the reply, and when it was asked for: now, or once the store is back.

        Raises StoreAway.
        """
        assert self._unanswered is None, "composed before what was in doubt was cleared"
        self._sequence += 1
        head = (secrets.token_hex(8), self._sequence, self._name)
        whole = (self.key("epoch"), self.key("call", self._name), *keys)
        self._unanswered = _Call(script, whole, (*head, *arguments), apply)
        await self._send(self._unanswered)

    async def _send(self, call: _Call) -> None:
        asked = now_ms()
        status, epoch, _, *rest = await self._store.call(call.script, call.keys, call.arguments)
        self._unanswered = None
        is_loss = self._epoch is not None and epoch != self._epoch
        self._epoch = epoch
        if is_loss and call.script is RESERVE:
            self._on_loss()
        if status != OVERTAKEN:
            call.apply([status, *rest], asked)
        if is_loss and call.script is SETTLE:
            self._on_loss()
