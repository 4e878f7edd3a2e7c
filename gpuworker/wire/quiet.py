"""What a stranger can cause again and again is said once a minute."""

INTERVAL_MS = 60_000
_MAX_KINDS = 256


class Quiet:
    """Remembers a bounded number of kinds; past that, everything counts as one."""

    def __init__(self) -> None:
        self._said_ms: dict[str, float] = {}

    def may_say(self, kind: str, now_ms: float) -> bool:
        if kind not in self._said_ms and len(self._said_ms) >= _MAX_KINDS:
            kind = ""
        if now_ms - self._said_ms.get(kind, -INTERVAL_MS) < INTERVAL_MS:
            return False
        self._said_ms[kind] = now_ms
        return True
