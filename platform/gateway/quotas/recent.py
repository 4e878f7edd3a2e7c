"""How much a counter that only grows has grown lately, from a look at it every few seconds."""

from collections import deque

_SAMPLE_MS = 5_000


class Recent:
    """Over `window_ms`, and up to five seconds more."""

    def __init__(self, window_ms: int, now: int) -> None:
        self._window_ms = window_ms
        self._samples: deque[tuple[int, int]] = deque([(now, 0)])  # at most window / 5 s + 2

    def sample(self, count: int, now: int) -> None:
        if now - self._samples[-1][0] >= _SAMPLE_MS:
            self._samples.append((now, count))
            while now - self._samples[1][0] >= self._window_ms:
                self._samples.popleft()

    def growth(self, count: int) -> int:
        return max(0, count - self._samples[0][1])
