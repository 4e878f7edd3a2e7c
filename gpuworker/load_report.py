"""What the dispatcher is told about this worker: the state after a step, and the rows that moved on."""

from collections import deque

from gpuworker.engine.engine import EngineStats
from gpuworker.wire.messages import Report, RowKey

RATE_WINDOW_MS = 3_000


class LoadReport:
    """Rows that were prefilled or ended are named in the next report, and only there."""

    def __init__(self, stats: EngineStats) -> None:
        self._stats = stats
        self._reported: tuple[int, ...] = ()
        self._seq = 0
        self._prefilled: list[RowKey] = []
        self._ended: list[RowKey] = []
        self._produced: deque[tuple[float, int]] = deque()  # (time, output tokens since start)

    def update(self, stats: EngineStats, prefilled: list[RowKey], ended: list[RowKey]) -> None:
        self._stats = stats
        self._prefilled += prefilled
        self._ended += ended

    @property
    def has_news(self) -> bool:
        return bool(self._prefilled or self._ended) or self._reported != self._state()

    def restart(self, prefilled: list[RowKey]) -> None:
        """For a dispatcher that was just told which rows run, and nothing else."""
        self._prefilled, self._ended = prefilled, []

    def take(self, now_ms: float) -> Report:
        stats = self._stats
        self._seq += 1
        self._reported = self._state()
        prefilled, self._prefilled = self._prefilled, []
        ended, self._ended = self._ended, []
        return Report(
            seq=self._seq,
            running=stats.running,
            waiting=stats.waiting,
            pending_prefill_tokens=stats.pending_prefill_tokens,
            free_blocks=stats.free_blocks,
            step=stats.step,
            step_ms=round(stats.step_ms, 3),
            batch_rows=stats.batch_rows,
            tokens_per_s=round(self._tokens_per_s(now_ms), 1),
            preemptions=stats.preemptions,
            prefilled=prefilled,
            ended=ended,
        )

    def _state(self) -> tuple[int, ...]:
        stats = self._stats
        return (stats.running, stats.waiting, stats.pending_prefill_tokens, stats.free_blocks)

    def _tokens_per_s(self, now_ms: float) -> float:
        """Over the last seconds; the oldest sample kept is the newest one outside the window."""
        produced = self._produced
        produced.append((now_ms, self._stats.output_tokens))
        while len(produced) > 1 and produced[1][0] <= now_ms - RATE_WINDOW_MS:
            produced.popleft()
        elapsed_ms = now_ms - produced[0][0]
        return (produced[-1][1] - produced[0][1]) * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0
