"""Requests on a replica, by flow. A lane's decodes advance together: what a step costs the simulator does not
depend on how many rows it holds, as long as none of them is left out.

A lane counts the steps that ran all of it (`tick`); a row knows the tick at which it ends. A step that ran
only some of the rows leaves `tick` alone and brings the ends of those nearer: then `ends` is rebuilt.
"""

from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from policy.flow import Flow
from policy.step_cost import StepCost

BATCH = "batch"


@dataclass(slots=True, eq=False)
class Row:
    """One request on a replica. `number` is the request's in its fleet."""

    number: int
    flow: Flow
    weight: float
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()
    cached_tokens: int = 0  # of the prompt: computed by somebody before
    left_tokens: int = 0  # of the prompt, to be computed
    charged_tokens: int = 0  # of the prompt: what a preemption makes anew is charged to nobody
    emitted: int = 0  # output tokens before it began to decode
    end_tick: int = 0
    entered: int = 0  # order of admission
    preemptions: int = 0
    last_us: int = 0  # when its last token came
    ran_us: int = 0  # beginning of the last step that held it

    @property
    def need_tokens(self) -> int:
        """What has to be computed before it decodes: after a preemption, what it has emitted too."""
        return self.prompt_tokens + self.emitted

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


class Lane:
    """A flow on one replica. `waiting` are placed and hold no KV; `begun` have prompt tokens left; `rows`
    decode, those that ran longest ago first."""

    __slots__ = (
        "begun",
        "context",
        "ends",
        "flow",
        "is_batch",
        "is_ragged",
        "last_us",
        "prompts_context",
        "ran_us",
        "rows",
        "tick",
        "waiting",
        "weight",
    )

    def __init__(self, flow: Flow, weight: float) -> None:
        self.flow, self.weight = flow, weight
        self.is_batch = flow.klass == BATCH
        self.waiting: deque[Row] = deque()
        self.begun: deque[Row] = deque()
        self.rows: deque[Row] = deque()
        self.context = 0  # tokens of KV that `rows` read
        self.prompts_context = 0  # tokens of all prompts that are begun
        self.tick = 0
        self.last_us = 0  # end of the last step that ran all rows
        self.ran_us = 0  # its beginning
        self.is_ragged = False  # rows ended their last step at different times, `ends` is out of order
        self.ends: list[tuple[int, int, Row]] = []

    @property
    def demand(self) -> int:
        return len(self.waiting) + len(self.begun) + len(self.rows)

    @property
    def active(self) -> int:
        """Rows that hold KV."""
        return len(self.begun) + len(self.rows)

    def context_of(self, row: Row) -> int:
        return row.total_tokens - (row.end_tick - self.tick)

    def decodes_ms(self, cost: StepCost) -> float:
        return cost.row_ms * len(self.rows) + cost.context_ms * self.context

    def row_ran_us(self, row: Row) -> int:
        """Beginning of the last step that held it."""
        return max(row.ran_us, self.ran_us)

    def join(self, row: Row, now_us: int) -> None:
        """Its prompt is computed and `row.emitted` tokens are out, but not all."""
        row.end_tick = self.tick + row.output_tokens - row.emitted
        row.last_us = now_us
        if not self.rows:
            self.last_us, self.ran_us, self.is_ragged = now_us, row.ran_us, False
            self.ends.clear()  # it may name rows that have ended
        elif self.last_us != now_us:
            self.is_ragged = True
        self.rows.append(row)
        self.context += row.prompt_tokens + row.emitted
        heappush(self.ends, (row.end_tick, row.entered, row))

    def ran_all(self) -> list[Row]:
        """Every row decoded once. Those that ended have left."""
        if self.is_ragged:
            self.mend()
            self.is_ragged = False
        self.tick += 1
        self.context += len(self.rows)
        ends, ended = self.ends, []
        while ends and ends[0][0] <= self.tick:
            ended.append(heappop(ends)[2])
        for row in ended:
            self._drop(row)
        return ended

    def ran(self, rows: list[Row]) -> list[Row]:
        """These decoded once, and stand at the end of `rows`. Those that ended have left."""
        self.context += len(rows)
        ended = []
        for row in rows:
            row.end_tick -= 1
            if row.end_tick <= self.tick:
                ended.append(row)
        for row in ended:
            self._drop(row)
        self.is_ragged = True
        return ended

    def mend(self) -> None:
        """Puts `ends` in order again."""
        self.ends = [(row.end_tick, row.entered, row) for row in self.rows]
        heapify(self.ends)

    def leave(self, row: Row) -> None:
        """A decoding row gives way; it knows what it has emitted."""
        row.emitted = row.output_tokens - (row.end_tick - self.tick)
        row.last_us = max(row.last_us, self.last_us)
        self._drop(row)
        self.mend()

    def held(self) -> list[tuple[Row, int]]:
        """Rows that hold KV, and how much."""
        begun = [(row, row.need_tokens) for row in self.begun]
        return begun + [(row, self.context_of(row)) for row in self.rows]

    def _drop(self, row: Row) -> None:
        self.rows.remove(row)
        self.context -= self.context_of(row)
