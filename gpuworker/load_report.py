"""What the dispatcher is told: this worker's state after a step, and what changed since the last report."""

from collections import deque

from gpuworker.backends.base import BackendStep
from gpuworker.engine.stats import EngineStats
from gpuworker.flow_totals import FlowTotals
from gpuworker.wire.messages import Report, RowKey
from policy.step_cost import StepCost

TOKENS_WINDOW_MS = 3_000
PREEMPTIONS_WINDOW_MS = 60_000


class Rate:
    """Of a running total, over the last `window_ms`."""

    def __init__(self, window_ms: float) -> None:
        self._window_ms = window_ms
        self._samples: deque[tuple[float, int]] = deque()  # the oldest is the newest one outside the window

    def per_ms(self, now_ms: float, total: int) -> float:
        samples = self._samples
        samples.append((now_ms, total))
        while len(samples) > 1 and samples[1][0] <= now_ms - self._window_ms:
            samples.popleft()
        elapsed_ms = now_ms - samples[0][0]
        return (total - samples[0][1]) / elapsed_ms if elapsed_ms > 0 else 0.0


class LoadReport:
    """Rows that were prefilled or ended are named in the next report, and only there.

    Prompts that the backend was given but did not look at yet count as pending: a report takes into account
    whatever was received before it.
    """

    def __init__(self, stats: EngineStats) -> None:
        self.is_draining = self.is_warming = False
        self._stats = stats
        self._reported: tuple[int, ...] = ()
        self._seq = 0
        self._runs = 0
        self._prefilled: list[RowKey] = []
        self._ended: list[RowKey] = []
        self._cut: list[RowKey] = []  # of those
        self._given = 0
        self._untaken: deque[tuple[int, int]] = deque()  # (number of the call, prompt tokens to compute)
        self._held: dict[bytes, None] = {}  # prefixes in the cache, as the router is to know them
        self._told: dict[bytes, bool] = {}  # what changed since the last report: whether it came or went
        self._is_new = True  # nobody was told anything yet
        self._work = FlowTotals()
        self._tokens = Rate(TOKENS_WINDOW_MS)
        self._preemptions = Rate(PREEMPTIONS_WINDOW_MS)

    def warmed(self, stats: EngineStats) -> None:
        """From now on it may be given something."""
        self._stats, self.is_warming = stats, False

    def run_received(self) -> None:
        self._runs += 1

    def given(self, prompt_tokens: int) -> None:
        """The backend's `submit` or `prefill` was called."""
        self._given += 1
        self._untaken.append((self._given, prompt_tokens))

    def update(self, step: BackendStep) -> None:
        self._stats = step.stats
        self._work.add(step.output.work)
        self._prefilled += step.output.prefilled
        self._ended += step.output.ended
        self._cut += step.output.cut
        while self._untaken and self._untaken[0][0] <= step.taken:
            self._untaken.popleft()
        for key in step.evicted:
            self._held.pop(key, None)
            self._told[key] = False
        for key in step.cached:
            self._held[key] = None
            self._told[key] = True

    @property
    def has_news(self) -> bool:
        return bool(self._prefilled or self._ended) or self._work.is_due or self._reported != self._state()

    def restart(self, prefilled: list[RowKey]) -> None:
        """For a dispatcher that was just told which rows run, and nothing else."""
        self._prefilled, self._ended, self._cut = prefilled, [], []
        self._runs, self._is_new = 0, True

    def take(self, now_ms: float) -> Report:
        stats = self._stats
        self._seq += 1
        self._reported = self._state()
        prefilled, self._prefilled = self._prefilled, []
        ended, self._ended = self._ended, []
        cut, self._cut = self._cut, []
        told, self._told = self._told, {}
        is_new, self._is_new = self._is_new, False
        return Report(
            seq=self._seq,
            running=stats.running,
            waiting=stats.waiting,
            pending_prefill_tokens=self._pending_prefill_tokens,
            free_blocks=stats.free_blocks,
            step=stats.step,
            step_ms=round(stats.step_ms, 3),
            batch_rows=stats.batch_rows,
            tokens_per_s=round(self._tokens.per_ms(now_ms, stats.output_tokens) * 1_000, 1),
            preemptions=stats.preemptions,
            prefilled=prefilled,
            ended=ended,
            cached=list(self._held) if is_new else [key for key, came in told.items() if came],
            evicted=[] if is_new else [key for key, came in told.items() if not came],
            cache_reset=is_new,
            runs=self._runs,
            draining=self.is_draining,
            swaps=stats.swaps,
            paused=stats.paused,
            preemptions_per_min=round(self._preemptions.per_ms(now_ms, stats.preemptions) * 60_000, 1),
            cost=_cost_values(stats.cost),
            row_limit=stats.row_limit,
            work=self._work.take(now_ms, everything=is_new),
            full=stats.is_full,
            usage_mismatches=stats.usage_mismatches,
            cut=cut,
            warming=self.is_warming,
        )

    @property
    def _pending_prefill_tokens(self) -> int:
        return self._stats.pending_prefill_tokens + sum(tokens for _, tokens in self._untaken)

    def _state(self) -> tuple[int, ...]:
        stats = self._stats
        rows = (stats.running, stats.waiting, self._pending_prefill_tokens, stats.free_blocks)
        return (*rows, stats.is_full)


def _cost_values(cost: StepCost | None) -> list[float]:
    if cost is None:
        return []
    return [cost.base_ms, cost.row_ms, cost.token_ms, cost.context_ms, cost.pair_ms]
