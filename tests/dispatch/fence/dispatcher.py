"""The production dispatcher of the simulation, and an account of what its queues charge."""

from dispatch.limits import Limits
from dispatch.server import DispatchServer
from gpuworker.wire.connection import Connection
from gpuworker.wire.messages import AnyMessage, Report, RowKey
from tests.dispatch.fence.virtual_loop import VirtualLoop

Placing = tuple[str, RowKey]  # a worker, and what was sent there


class WatchedDispatcher(DispatchServer):
    """`prices` is what it charged for what it sent and does not know to have run, `kept_us` for the rest."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        super().__init__("s", Limits(), lambda: loop.now * 1000, seed=seed)
        self.core = self._dispatcher
        self.charged_us = 0
        self.prices: dict[Placing, int] = {}
        self.kept_us = 0
        self._latest_us = 0

    def run_sent(self, worker: str, row: RowKey) -> None:
        self.prices[worker, row] = self._latest_us

    def peer_said(self, connection: Connection, message: AnyMessage) -> None:
        peer = self._peers.get(connection)
        if peer is not None and isinstance(message, Report) and not message.hung:
            placed = self.core._members.workers[peer.incarnation].placed
            told = [row for row in (*message.prefilled, *message.ended) if row in placed]
            # Nothing is charged for rows that a worker ran already.
            ran = {row for row in told if placed[row].waiting is not None}
            self.kept_us += sum(self.prices.pop((peer.incarnation, row), 0) for row in ran)
        super().peer_said(connection, message)

    def charge(self, cost_us: int) -> None:
        self.charged_us += cost_us
        self._latest_us = cost_us
