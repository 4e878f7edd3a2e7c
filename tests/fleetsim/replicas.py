"""A replica on its own clock, for tests."""

from collections import defaultdict
from dataclasses import replace

from fleetsim.engine import Engine
from fleetsim.replica import Replica
from fleetsim.replica_model import SPEC, ReplicaModel
from fleetsim.rows import Row
from policy.flow import Flow

SMALL = replace(SPEC, kv_tokens=20_000)


class Bench:
    """Rows are placed at times given in milliseconds; `run` goes on until nothing is left."""

    def __init__(self, model: ReplicaModel = SPEC, *, pausing: bool = True) -> None:
        self.engine = Engine()
        self.first_ms: dict[int, float] = {}
        self.end_ms: dict[int, float] = {}
        self.gaps_ms: defaultdict[str, list[float]] = defaultdict(list)  # by tenant
        self.cached: dict[int, int] = {}
        self.steps: list[float] = []
        self.replica = Replica("r", model, self._gap, pausing=pausing)
        self._numbers = 0

    def place(
        self,
        at_ms: float,
        prompt: int,
        output: int,
        *,
        tenant: str = "tenant",
        klass: str = "interactive",
        weight: float = 1.0,
        prefix: tuple[int, ...] = (),
    ) -> int:
        self._numbers += 1
        row = Row(self._numbers, Flow(tenant, klass), weight, prompt, output, prefix)
        self.engine.at(round(at_ms * 1000), self._place, row)
        return row.number

    def run(self, until_ms: float = 1e9) -> None:
        self.engine.run(round(until_ms * 1000))

    def _gap(self, flow: Flow, gap_us: int, rows: int) -> None:
        self.gaps_ms[flow.tenant] += [gap_us / 1000] * rows

    def _place(self, row: Row) -> None:
        self.replica.place(row, self.engine.now_us)
        if not self.replica.is_busy:
            self._begin()

    def _begin(self) -> None:
        duration_us = self.replica.step_begin(self.engine.now_us)
        self.steps.append(duration_us / 1000)
        self.engine.at(self.engine.now_us + duration_us, self._end)

    def _end(self) -> None:
        end = self.replica.step_end(self.engine.now_us)
        for row in end.prefilled:
            self.first_ms.setdefault(row.number, self.engine.now_ms)
            self.cached[row.number] = row.cached_tokens
        for row in end.ended:
            self.end_ms[row.number] = self.engine.now_ms
        if self.replica.has_work:
            self._begin()
