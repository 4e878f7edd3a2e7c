"""One request inside the engine: its ids, how many of them are computed, and the blocks that hold their KV.

`num_computed` chases `len(token_ids)`: prefill, decode and recomputation after a preemption are the same
thing at different distances. No torch, no clock.
"""

from enum import Enum

from gpuworker.wire.messages import RowKey, Submit, unpack_ids


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class Sequence:
    """Owned by the scheduler; others read."""

    __slots__ = (
        "arrived_ms",
        "block_table",
        "cached_tokens",
        "deadline_ms",
        "first_token_ms",
        "key",
        "max_tokens",
        "message",
        "num_computed",
        "preemptions",
        "prompt_len",
        "reason",
        "slot",
        "started_ms",
        "status",
        "stop_ids",
        "submit",
        "token_ids",
    )

    def __init__(
        self, key: RowKey, submit: Submit, *, max_tokens: int, stop_ids: frozenset[int], now_ms: float
    ) -> None:
        self.key = key
        self.submit = submit
        self.token_ids: list[int] = unpack_ids(submit.prompt)
        self.prompt_len = len(self.token_ids)
        self.max_tokens = max_tokens
        self.stop_ids = stop_ids
        self.status = Status.WAITING
        self.num_computed = 0
        self.cached_tokens = 0  # of the prompt, taken from a prefix cache instead of computed
        self.block_table: list[int] = []
        self.slot = -1
        self.preemptions = 0
        self.reason = ""  # End.reason, once decided
        self.message = ""
        self.arrived_ms = now_ms
        self.deadline_ms = now_ms + submit.deadline_ms
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
