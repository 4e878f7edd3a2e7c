"""Whether the quota store answers, and what follows: OK → OPEN (a minute of local shares) → TIGHT → OK.

Pure. What a gateway may grant by itself meanwhile is `policy.local_share`; every change is handed to the
caller for alerts and metrics.
"""

from dataclasses import dataclass
from enum import StrEnum

OPEN_MS = 60_000
FAILURES = 5
FAILING_MS = 1_000


class State(StrEnum):
    OK = "ok"
    OPEN = "open"
    TIGHT = "tight"


@dataclass(frozen=True, slots=True)
class StateChange:
    before: State
    after: State
    at_ms: int
    down_ms: int  # since the first call that failed


class StoreState:
    """Of one store as one gateway sees it. A single call that fails is no outage: five in a row are, and so
    are failures only for a second. Each must tell something new: calls under way together fail together."""

    def __init__(self) -> None:
        self.state = State.OK
        self._failures = 0  # since the last answer
        self._failing_since_ms = self._failed_ms = 0  # the first since then, and the last that counted
        self._answered_ms = -1  # when the latest call that was answered was asked
        self._opened_ms = 0

    @property
    def is_failing(self) -> bool:
        """The last call failed: requests get the local share, whatever the state."""
        return self._failures > 0

    def serves(self, klass: str) -> bool:
        """False: this class is refused until the store is back."""
        return self.state is not State.TIGHT or klass != "batch"

    def failed(self, asked_ms: int, now_ms: int) -> StateChange | None:
        """A call failed or timed out. `asked_ms`: when it was sent."""
        if asked_ms < self._answered_ms:  # the store answered one that was asked later
            return self.tick(now_ms)
        if self._failures == 0:
            self._failing_since_ms = now_ms
        if self._failures == 0 or asked_ms >= self._failed_ms:
            self._failures, self._failed_ms = self._failures + 1, now_ms
        is_outage = self._failures >= FAILURES or now_ms - self._failing_since_ms >= FAILING_MS
        if self.state is State.OK and is_outage:
            self._opened_ms = now_ms
            return self._change(State.OPEN, now_ms)
        return self.tick(now_ms)

    def answered(self, asked_ms: int, now_ms: int) -> StateChange | None:
        """The store did what it was asked."""
        change = None if self.state is State.OK else self._change(State.OK, now_ms)
        self._failures, self._answered_ms = 0, max(self._answered_ms, asked_ms)
        return change

    def tick(self, now_ms: int) -> StateChange | None:
        if self.state is State.OPEN and now_ms - self._opened_ms >= OPEN_MS:
            return self._change(State.TIGHT, now_ms)
        return None

    def _change(self, after: State, now_ms: int) -> StateChange:
        change = StateChange(self.state, after, now_ms, now_ms - self._failing_since_ms)
        self.state = after
        return change
