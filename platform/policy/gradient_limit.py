"""How many requests a server of somebody else's is given at a time, found from its latency alone. Pure.

Gradient2 of Netflix concurrency-limits (github.com/Netflix/concurrency-limits, `Gradient2Limit`, and the
windows of `WindowedLimit`): while latency is no worse than its long average, the limit grows by what may
queue; when it rises, the limit shrinks in proportion, by half at most, smoothed. A refusal for overload takes
a tenth at once, as `AIMDLimit` there. Not for our own engines: their limit is memory and step time.
"""

from dataclasses import dataclass

_WARM_UP = 10  # windows whose plain mean begins the long average
_RECOVERY = 0.9  # of the long average, while it is twice the present latency: the load is over
_BACKOFF = 0.9


@dataclass(frozen=True, slots=True)
class GradientSettings:
    initial: int = 16
    least: int = 1
    most: int = 256
    may_queue: int = 4
    smoothing: float = 0.2
    long_windows: int = 600
    window_ms: float = 1_000.0
    window_samples: int = 10


class GradientLimit:
    """`latency_ms` is of the first token; times are monotonic milliseconds."""

    def __init__(self, settings: GradientSettings | None = None) -> None:
        self._settings = settings or GradientSettings()
        if not 1 <= self._settings.least <= self._settings.most:
            raise ValueError("the limit must lie between 1 and its most")
        self._limit = float(min(max(self._settings.initial, self._settings.least), self._settings.most))
        self._long_ms = 0.0
        self._windows = 0
        self._begun_ms: float | None = None
        self._samples = 0
        self._sum_ms = 0.0
        self._most_inflight = 0

    @property
    def limit(self) -> int:
        return int(self._limit)

    def sample(self, now_ms: float, latency_ms: float, inflight: int) -> None:
        """`inflight`: requests under way when this one was answered, itself included."""
        settings = self._settings
        if self._begun_ms is None:
            self._begun_ms = now_ms
        self._samples += 1
        self._sum_ms += latency_ms
        self._most_inflight = max(self._most_inflight, inflight)
        if self._samples >= settings.window_samples and now_ms - self._begun_ms >= settings.window_ms:
            self._update(self._sum_ms / self._samples, self._most_inflight)
            self._begun_ms, self._samples, self._sum_ms, self._most_inflight = now_ms, 0, 0.0, 0

    def overloaded(self) -> None:
        """The server refused a request because it has too many."""
        self._limit = max(self._limit * _BACKOFF, float(self._settings.least))

    def _update(self, short_ms: float, inflight: int) -> None:
        settings = self._settings
        short_ms = max(short_ms, 0.001)
        self._windows += 1
        if self._windows <= _WARM_UP:
            self._long_ms += (short_ms - self._long_ms) / self._windows
        else:
            self._long_ms += (short_ms - self._long_ms) * 2 / (settings.long_windows + 1)
        if self._long_ms / short_ms > 2:
            self._long_ms *= _RECOVERY
        if inflight < self._limit / 2:
            return  # there was not enough to do to tell
        gradient = min(max(self._long_ms / short_ms, 0.5), 1.0)
        wanted = self._limit * gradient + settings.may_queue
        limit = self._limit * (1 - settings.smoothing) + wanted * settings.smoothing
        self._limit = min(max(limit, float(settings.least)), float(settings.most))
