"""Waiting longer after each failure in a row, and telling each kind of failure now and then."""

import asyncio
import logging
import time
from collections.abc import Callable

from gpuworker.wire.quiet import Quiet

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 5.0


class Backoff:
    """One per thing that is retried. Logs each kind of trouble once a minute, and when it ends."""

    def __init__(self, subject: str, logger: logging.Logger) -> None:
        self._subject = subject
        self._logger = logger
        self._delay_s = FIRST_DELAY_S
        self._is_troubled = False
        self._said = Quiet()

    async def failed(self, error: Exception, pause_s: Callable[[float], float] = float) -> None:
        """Says it, and waits; `pause_s` may change for how long."""
        trouble = f"{type(error).__name__}: {error}"
        if self._said.may_say(trouble, time.monotonic() * 1000):
            self._logger.warning("%s: %s; trying again", self._subject, trouble)
        self._is_troubled = True
        await asyncio.sleep(pause_s(self._delay_s))
        self._delay_s = min(self._delay_s * 2, MAX_DELAY_S)

    def succeeded(self) -> None:
        if self._is_troubled:
            self._logger.info("%s: works again", self._subject)
            self._said = Quiet()
        self._is_troubled, self._delay_s = False, FIRST_DELAY_S
