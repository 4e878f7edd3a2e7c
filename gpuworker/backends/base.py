"""What a worker process needs from whatever computes its tokens, and what it is told after each step."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gpuworker.engine.engine import EngineStats
from gpuworker.engine.output import StepOutput
from gpuworker.wire.messages import Capacity, RowKey, Submit


class BackendError(Exception):
    """The backend cannot serve this model; the message says why."""


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """The backend can never run this row; nothing was computed."""

    row: RowKey
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class BackendStep:
    output: StepOutput
    stats: EngineStats
    refused: list[RefusedRow] = field(default_factory=list)


OnStep = Callable[[BackendStep], None]
OnDeath = Callable[[BaseException], None]


class Backend(Protocol):
    """Called from the event loop only, and calls back there. Every row that was submitted ends exactly once:
    in `BackendStep.refused` or in `StepOutput.ended`, whatever happens, unless `on_death` is called."""

    @property
    def capacity(self) -> Capacity: ...

    async def start(self, on_step: OnStep, on_death: OnDeath) -> EngineStats:
        """Returns when the first request would be served at full speed."""

    def submit(self, row: RowKey, submit: Submit) -> None: ...

    def cancel(self, row: RowKey, reason: str) -> None:
        """Unknown and ended rows are ignored."""

    def cancel_gateway(self, gateway: str, reason: str) -> None: ...

    async def stop(self) -> None:
        """After the step in progress. Rows that did not end are lost."""
