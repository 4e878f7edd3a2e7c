"""Waiting longer after each failure in a row, and telling each kind of failure once."""

import asyncio
import logging
from collections.abc import Callable

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 5.0


class Backoff:
    """One per thing that is retried. Logs when trouble starts or changes, and when it ends."""

    def __init__(self, subject: str, logger: logging.Logger) -> None:
        self._subject = subject
        self._logger = logger
        self._delay_s = FIRST_DELAY_S
        self._trouble = ""

    async def failed(self, error: Exception, pause_s: Callable[[float], float] = float) -> None:
        """Says it, and waits; `pause_s` may change for how long."""
        trouble = f"{type(error).__name__}: {error}"
        if trouble != self._trouble:
            self._logger.warning("%s: %s; trying again", self._subject, trouble)
            self._trouble = trouble
        await asyncio.sleep(pause_s(self._delay_s))
        self._delay_s = min(self._delay_s * 2, MAX_DELAY_S)

    def succeeded(self) -> None:
        if self._trouble:
            self._logger.info("%s: works again", self._subject)
        self._trouble, self._delay_s = "", FIRST_DELAY_S
