"""A stage for controller tests: scripted peers on real sockets, real stores, a manual clock."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpuworker.wire.messages import UsageCheckpoint
from modelsvc.controller.runner import ControllerSettings, controller_run
from tests.billing.peers import SECRET, ScriptedDispatcher, ScriptedWorker
from tests.billing.records import OCCURRED_AT_MS, request_id
from tests.billing.shop import Shop


class Stage:
    """The peers, a Channels listener, and a clock that moves only with the fleet states the test sends."""

    def __init__(self, shop: Shop, valkey_url: str, folder: Path, layer: Any, channel: str) -> None:
        self.shop = shop
        self.folder = folder
        self.dispatcher = ScriptedDispatcher(folder / "dispatch.sock")
        self.worker = ScriptedWorker(folder / "worker.sock")
        self.now_s = 0.0
        self._clock_reads: list[int] = []  # per controller
        self._clock_read = asyncio.Event()
        self._layer = layer
        self._channel = channel
        self._settings = ControllerSettings(
            dispatch_address=self.dispatcher.address,
            wire_secret=SECRET,
            database_url=shop.database.operator_url,
            redis_url=valkey_url,
            reap_interval_s=0.02,
            collect_interval_s=0.02,
        )

    def checkpoint(self, number: int, output_tokens: int, **changes: object) -> UsageCheckpoint:
        fields: dict[str, object] = {
            "request_id": str(request_id(number)),
            "attempt": 1,
            "tenant": str(self.shop.a),
            "gateway": "gone",
            "worker": self.worker.name,
            "worker_incarnation": self.worker.incarnation,
            "model": "m",
            "digest": "d",
            "klass": "interactive",
            "prompt_tokens": 10,
            "cached_tokens": 0,
            "output_tokens": output_tokens,
            "reason": "",
            "at_ms": OCCURRED_AT_MS,
        }
        return UsageCheckpoint(**(fields | changes))  # type: ignore[arg-type]

    @asynccontextmanager
    async def controller(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        index = len(self._clock_reads)
        self._clock_reads.append(0)

        def clock() -> float:
            self._clock_reads[index] += 1
            self._clock_read.set()
            return self.now_s

        running = asyncio.create_task(controller_run(self._settings, self._layer, stop, clock))
        await self.dispatcher.joined(len(self._clock_reads))
        try:
            yield
        finally:
            stop.set()
            async with asyncio.timeout(10):
                await running

    async def reaper_rounds(self) -> None:
        """Every controller's reaper, which reads the clock once a round, began and ended one."""
        wanted = [reads + 2 for reads in self._clock_reads]
        async with asyncio.timeout(10):
            while any(reads < want for reads, want in zip(self._clock_reads, wanted, strict=True)):
                self._clock_read.clear()
                await self._clock_read.wait()

    async def pass_time(
        self, seconds: float, gateways: Sequence[str], workers: Sequence[ScriptedWorker] | None = None
    ) -> None:
        """Half a second per fleet state, each seen by every controller before the next."""
        for _ in range(int(seconds * 2)):
            self.now_s += 0.5
            present = [self.worker] if workers is None else workers
            state = self.dispatcher.tell([worker.view() for worker in present], gateways)
            for _ in self._clock_reads:
                assert (await self.published())["seq"] == state.seq

    async def published(self) -> dict[str, Any]:
        async with asyncio.timeout(10):
            message = await self._layer.receive(self._channel)
        assert message["type"] == "fleet.state"
        state: dict[str, Any] = message["state"]
        return state
