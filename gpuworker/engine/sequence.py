"""One choice of a request inside the engine: its ids, how many of them are computed, the blocks that hold KV.

`num_computed` chases `len(token_ids)`: prefill, decode and recomputation after a preemption are the same
thing at different distances. No torch, no clock.
"""

from enum import Enum

import msgspec

from gpuworker.engine.plan import RowStart, SequenceKey
from gpuworker.engine.sampling import choice_seed
from gpuworker.wire.messages import RowKey, Submit, unpack_ids
from policy.flow import Flow


class Status(Enum):
    WAITING = "waiting"  # holds no device block; its KV may lie in host memory
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """Owned by the scheduler; others read."""

    __slots__ = (
        "arrived_ms",
        "block_table",
        "cached_tokens",
        "chain",
        "charged",
        "computed_elsewhere",
        "deadline_ms",
        "emitted",
        "first_token_ms",
        "flow",
        "held",
        "host_blocks",
        "key",
        "last_run_ms",
        "max_tokens",
        "message",
        "num_computed",
        "parent",
        "preemptions",
        "prompt_len",
        "prompt_reported",
        "published",
        "reason",
        "sampling",
        "slot",
        "started_ms",
        "status",
        "stop_ids",
        "stopped_by",
        "table_told",
        "token_ids",
        "waits_for_grammar",
        "weight",
    )

    def __init__(
        self,
        row: RowKey,
        submit: Submit,
        *,
        choice: int = 0,
        parent: "Sequence | None" = None,
        max_tokens: int,
        stop_ids: frozenset[int],
        chain_root: bytes,
        now_ms: float,
    ) -> None:
        self.key = SequenceKey(row.gateway, row.sid, choice)
        self.flow = Flow(submit.tenant, submit.klass)
        self.weight = submit.weight
        self.sampling = msgspec.structs.replace(
            submit.sampling,
            seed=choice_seed(submit.sampling.seed, choice),
            prompt_logprobs=-1 if choice else submit.sampling.prompt_logprobs,
        )
        self.parent = parent  # choice 0 of the same request: its prompt's KV is shared
        self.token_ids: list[int] = unpack_ids(submit.prompt) if parent is None else parent.prompt
        # What another replica gave of the output is computed with the prompt, and is output all the same.
        self.emitted = submit.emitted
        self.prompt_len = len(self.token_ids) - (0 if parent else submit.emitted)
        self.max_tokens = max_tokens
        self.stop_ids = stop_ids
        self.status = Status.WAITING
        self.held = False  # its client does not keep up: nothing is computed for it
        self.waits_for_grammar = False
        self.num_computed = 0
        self.block_table: list[int] = []
        self.table_told = 0  # entries of the table that the runner knows
        self.host_blocks: list[int] = []
        self.slot = -1
        self.chain = [chain_root]  # then the key of each full block, as far as somebody asked
        self.published = 0  # full blocks of the table that were offered to the prefix cache
        self.cached_tokens = 0  # of the prompt, found in the prefix cache when it first ran
        self.computed_elsewhere = range(0)  # prompt positions that another replica computed for this request
        self.charged = 0  # ids whose first computation was charged to the flow
        self.prompt_reported = 1  # prompt positions before this one had their logprobs reported
        self.preemptions = 0
        self.reason = ""  # End.reason, once decided
        self.stopped_by: str | int | None = None  # the stop string, or the id, that ended it
        self.message = ""
        self.arrived_ms = now_ms
        self.deadline_ms = now_ms + submit.deadline_ms
        self.last_run_ms = now_ms
        self.started_ms: float | None = None  # start of its first prefill step
        self.first_token_ms: float | None = None

    @property
    def prompt(self) -> list[int]:
        return self.token_ids[: self.prompt_len]

    @property
    def output_len(self) -> int:
        return len(self.token_ids) - self.prompt_len

    @property
    def remaining(self) -> int:
        """Ids not yet computed. 1 is a decode."""
        return len(self.token_ids) - self.num_computed

    @property
    def prefill_tokens(self) -> int:
        """Of a prompt, or of what a preemption lost. Choices that will share their prompt have none."""
        return self.remaining if self.remaining > 1 and self.parent is None else 0

    @property
    def is_forkable(self) -> bool:
        """Whether its whole prompt lies in device blocks now."""
        return self.status is Status.RUNNING and self.num_computed >= self.prompt_len

    @property
    def is_due(self) -> bool:
        """Whether something may be computed for it: not held, not waiting for its grammar or its parent."""
        if self.held or self.waits_for_grammar:
            return False
        parent = self.parent
        return parent is None or parent.is_forkable or parent.output_len > 0 or bool(parent.reason)

    def row_start(self) -> RowStart:
        return RowStart(
            self.key, self.slot, list(self.token_ids), self.prompt_len, self.sampling, sorted(self.stop_ids)
        )
