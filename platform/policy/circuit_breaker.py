"""When a server that keeps failing is asked no more, and when it is tried again. Standard library only.

The pattern of M. Nygard, Release It! (2007): closed, open after failures in a row, and a probe after a pause
that doubles with each probe that fails. The owner sends the probe, so that no client's request is one.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    failures: int = 3  # in a row
    first_pause_ms: float = 1_000.0
    longest_pause_ms: float = 30_000.0


class CircuitBreaker:
    """Closed at first. Times are monotonic milliseconds."""

    def __init__(self, settings: BreakerSettings | None = None) -> None:
        self._settings = settings or BreakerSettings()
        self._failures = 0
        self._pause_ms = self._settings.first_pause_ms
        self._probe_ms: float | None = None

    @property
    def is_closed(self) -> bool:
        """Requests may be sent."""
        return self._probe_ms is None

    def probe_in_ms(self, now_ms: float) -> float | None:
        """How long until a probe is due; None while closed."""
        return None if self._probe_ms is None else max(self._probe_ms - now_ms, 0.0)

    def succeeded(self) -> None:
        """A request was answered. One that began before it opened proves nothing: a probe does."""
        if self.is_closed:
            self._failures = 0

    def failed(self, now_ms: float) -> bool:
        """A request was not answered. True: it opened just now."""
        if not self.is_closed:
            return False
        self._failures += 1
        if self._failures < self._settings.failures:
            return False
        self.trip(now_ms)
        return True

    def trip(self, now_ms: float, *, at_once: bool = False) -> None:
        """Opens it, whatever the count; `at_once`: a probe is due at once. Open already: no change."""
        if self.is_closed:
            self._pause_ms = self._settings.first_pause_ms
            self._probe_ms = now_ms if at_once else now_ms + self._pause_ms

    def probed(self, now_ms: float, *, has_answered: bool) -> None:
        """The probe's end. An answer closes it, a failure doubles the pause."""
        if self.is_closed:
            return
        if has_answered:
            self._probe_ms, self._failures = None, 0
        else:
            self._probe_ms = now_ms + self._pause_ms
            self._pause_ms = min(self._pause_ms * 2, self._settings.longest_pause_ms)
