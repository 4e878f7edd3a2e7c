"""How hard a broken stream is worked for, and how long a refusal asks to wait."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePolicy:
    """`attempts` and `total_s` count from the last event; a server generates on for 30 s without a reader."""

    attempts: int = 10  # 0: the stream is not resumable, and leaving it needs no second request
    total_s: float = 60.0
    first_wait_s: float = 0.1  # doubled by each attempt; each wait is shortened by up to half, by chance
    max_wait_s: float = 5.0
    restarts: int = 2  # of the whole answer, when the server no longer has what was sent
    silence_s: float = 45.0  # then the connection counts as broken; a server sends a comment every 10 s

    def __post_init__(self) -> None:
        if self.attempts < 0 or self.restarts < 0:
            raise ValueError("attempts and restarts count from zero")
        if min(self.total_s, self.first_wait_s, self.max_wait_s) < 0 or self.silence_s <= 0:
            raise ValueError("waits are not negative, and silence_s is above zero")

    def wait_s(self, attempt: int, chance: float) -> float:
        """Before attempt 1, 2, …; `chance` is of [0, 1)."""
        doubled = self.first_wait_s * 2.0 ** min(attempt - 1, 32)
        return min(doubled, self.max_wait_s) * (1 - chance / 2)


def may_retry(status: int, headers: Mapping[str, str]) -> bool:
    """The official client's rule."""
    told = headers.get("x-should-retry")
    if told in ("true", "false"):
        return told == "true"
    return status in (408, 409, 429) or status >= 500


def retry_after_s(headers: Mapping[str, str]) -> float:
    """0.0 where nothing usable is said."""
    for name, scale in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) / scale
        except (KeyError, ValueError):
            continue
        if math.isfinite(seconds) and seconds > 0:
            return seconds
    return 0.0
