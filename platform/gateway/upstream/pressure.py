"""How far each model's degradation goes, as the dispatcher said last."""

import time

from gpuworker.wire.messages import Pressure

FORGET_S = 5.0  # without another word: a dispatcher says it every second while there is any


class PressureBoard:
    def __init__(self) -> None:
        self._said: dict[str, tuple[Pressure, float]] = {}  # by digest

    def said(self, pressure: Pressure) -> None:
        if pressure.level:
            self._said[pressure.digest] = pressure, time.monotonic()
        else:
            self._said.pop(pressure.digest, None)

    def level(self, digest: str) -> int:
        """0 to 5, as in policy.ladder; 0 where nobody says anything."""
        pressure, said_at = self._said.get(digest, (None, 0.0))
        if pressure is None:
            return 0
        if time.monotonic() - said_at > FORGET_S:
            del self._said[digest]
            return 0
        return pressure.level

    def levels(self) -> dict[str, int]:
        """Of the models that have any."""
        return {digest: level for digest in list(self._said) if (level := self.level(digest))}
