"""Token frames on their way to gateways, one outbox for each gateway incarnation.

A gateway that has not connected yet, or whose connection just broke, has its frames kept: bounded in bytes
and time. Past that it is lost: its rows end, and only their ends are kept, should it come after all.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from gpuworker.wire.connection import Connection
from gpuworker.wire.framing import encode
from gpuworker.wire.messages import Frame, Heartbeat, RowKey

OUTBOX_BYTES = 8 << 20  # kept for an absent gateway, or unsent to one that does not read
CONNECT_MS = 5_000  # for a gateway that was never here
RECONNECT_MS = 2_000  # for one whose connection broke
KEEP_ENDS_MS = 30_000

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Outbox:
    connection: Connection | None = None
    sids: set[int] = field(default_factory=set)  # rows whose end is still to come
    kept: list[Frame] = field(default_factory=list)
    kept_bytes: int = 0
    is_lost: bool = False
    due_ms: float = 0.0  # of an absent gateway: when it is lost; of a lost one: when it is forgotten
    was_used: bool = False  # since the last heartbeat


class Outboxes:
    """`on_lost(gateway)` must end the gateway's rows. Called from the event loop only."""

    def __init__(self, on_lost: Callable[[str], None]) -> None:
        self._on_lost = on_lost
        self._outboxes: dict[str, _Outbox] = {}

    @property
    def is_settled(self) -> bool:
        """Every row's end was sent, or there is nobody to send it to."""
        return not any(box.sids or (box.kept and not box.is_lost) for box in self._outboxes.values())

    @property
    def connections(self) -> list[Connection]:
        return [box.connection for box in self._outboxes.values() if box.connection is not None]

    def row_add(self, row: RowKey, now_ms: float) -> None:
        box = self._outboxes.setdefault(row.gateway, _Outbox(due_ms=now_ms + CONNECT_MS))
        if box.is_lost:  # it is given another chance with each new row
            box.is_lost, box.due_ms = False, now_ms + CONNECT_MS
        box.sids.add(row.sid)

    def row_drop(self, row: RowKey) -> None:
        """It was refused: no end will be sent."""
        if box := self._outboxes.get(row.gateway):
            box.sids.discard(row.sid)
            self._forget_unneeded(row.gateway, box)

    def attach(self, gateway: str, connection: Connection) -> None:
        """The gateway connected: what was kept goes out first."""
        box = self._outboxes.setdefault(gateway, _Outbox())
        replaced, box.connection, box.is_lost = box.connection, connection, False
        if replaced is not None:
            replaced.abort("replaced by a newer connection")
        kept, box.kept, box.kept_bytes = box.kept, [], 0
        for frame in kept:
            connection.send(frame)

    def detach(self, gateway: str, connection: Connection, now_ms: float) -> None:
        box = self._outboxes.get(gateway)
        if box is None or box.connection is not connection:
            return
        box.connection, box.due_ms = None, now_ms + RECONNECT_MS
        self._forget_unneeded(gateway, box)

    def send(self, gateway: str, frame: Frame, now_ms: float) -> None:
        box = self._outboxes[gateway]
        box.sids.difference_update(end.sid for end in frame.ends)
        if box.connection is not None and box.connection.outbox_bytes > OUTBOX_BYTES:
            box.connection.abort("gateway does not read")
            box.connection = None
            self._lose(gateway, box, now_ms)
        if box.connection is not None and box.connection.send(frame):
            box.was_used = True
        elif not box.is_lost:
            self._keep(box, frame)
            if box.kept_bytes > OUTBOX_BYTES:
                self._lose(gateway, box, now_ms)
        elif frame.ends:
            self._keep(box, _ends_only(frame))

    def tick(self, now_ms: float) -> None:
        """Lose who is absent for too long, forget whom nobody asks for, greet the others."""
        for gateway, box in list(self._outboxes.items()):
            if box.connection is not None:
                if not box.was_used:
                    box.connection.send(Heartbeat())
                box.was_used = False
            elif now_ms >= box.due_ms:
                if box.is_lost:
                    box.kept, box.kept_bytes = [], 0
                    self._forget_unneeded(gateway, box)
                else:
                    self._lose(gateway, box, now_ms)

    def _keep(self, box: _Outbox, frame: Frame) -> None:
        box.kept.append(frame)
        box.kept_bytes += len(encode(frame))

    def _lose(self, gateway: str, box: _Outbox, now_ms: float) -> None:
        box.is_lost, box.due_ms = True, now_ms + KEEP_ENDS_MS
        kept, box.kept, box.kept_bytes = box.kept, [], 0
        for frame in kept:
            if frame.ends:
                self._keep(box, _ends_only(frame))
        logger.warning("gateway lost gateway=%s rows=%d", gateway, len(box.sids))
        self._on_lost(gateway)

    def _forget_unneeded(self, gateway: str, box: _Outbox) -> None:
        if box.connection is None and not box.sids and not box.kept:
            del self._outboxes[gateway]


def _ends_only(frame: Frame) -> Frame:
    return Frame(step=frame.step, sids=[], starts=[], counts=[], texts=[], ends=frame.ends)
