"""What a worker process needs from whatever computes its tokens, and what it is told after each step."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gpuworker.engine.output import StepOutput
from gpuworker.engine.stats import EngineStats
from gpuworker.engine.transfer import PrefillResult
from gpuworker.wire.messages import Capacity, RowKey, Submit
from policy.flow import Flow


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
    """`stats` take into account the first `taken` calls of `submit` and `prefill` since the start."""

    output: StepOutput
    stats: EngineStats
    refused: list[RefusedRow] = field(default_factory=list)
    cached: list[bytes] = field(default_factory=list)  # names that came into the prefix cache, for the router
    evicted: list[bytes] = field(default_factory=list)
    taken: int = 0


OnStep = Callable[[BackendStep], None]
OnDeath = Callable[[BaseException], None]
OnPrefill = Callable[[PrefillResult | None], None]


class Backend(Protocol):
    """Called from the event loop only, and calls back there. Every row that was submitted ends exactly once:
    in `BackendStep.refused` or in `StepOutput.ended`, whatever happens, unless `on_death` is called."""

    @property
    def capacity(self) -> Capacity: ...

    @property
    def kv_dtype(self) -> str:
        """As in the names of `policy.prefix`; "" when there is no prefix cache to share."""

    async def start(self, on_step: OnStep, on_death: OnDeath) -> EngineStats:
        """Returns when the first request would be served at full speed."""

    def submit(self, row: RowKey, submit: Submit, prefilled: PrefillResult | None = None) -> None:
        """`prefilled` spares the row what it can: blocks that do not fit this prompt, these weights or this
        pool are not used, and never an error."""

    def prefill(self, row: RowKey, submit: Submit, on_done: OnPrefill) -> None:
        """Compute the prompt, nothing more: no output, no usage. None: it ended otherwise, e.g. cancelled."""

    def pause(self, row: RowKey) -> None:
        """No more tokens until `resume`; the row keeps its KV. Unknown and ended rows are ignored."""

    def resume(self, row: RowKey) -> None: ...

    def cancel(self, row: RowKey, reason: str) -> None:
        """Unknown and ended rows are ignored."""

    def cancel_gateway(self, gateway: str, reason: str) -> None: ...

    def yield_also(self, flows: frozenset[Flow]) -> None:
        """These flows, and no others, are over their share in the whole fleet: they yield here too."""

    def is_hung(self) -> bool:
        """Its present step lasts far longer than it can (`policy.hang`): nothing more comes of its rows."""

    async def stop(self) -> None:
        """After the step in progress. Rows that did not end are lost."""
