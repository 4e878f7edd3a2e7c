"""Which flows are over their share in the whole fleet: what the dispatcher said, for as long as it holds."""

import logging
from collections.abc import Callable

from gpuworker.wire.messages import SHARES_MS, Shares
from policy.flow import Flow

logger = logging.getLogger(__name__)

NOBODY: frozenset[Flow] = frozenset()


class FleetShares:
    """`tell` is given the flows whenever they change; at first there are none."""

    def __init__(self, digest: str, tell: Callable[[frozenset[Flow]], None]) -> None:
        self._digest = digest
        self._tell = tell
        self._over = NOBODY
        self._until_ms = 0.0

    def said(self, shares: Shares, now_ms: float) -> None:
        """Those of other weights are ignored."""
        if shares.digest != self._digest:
            logger.warning("shares of digest=%s are not for this worker", shares.digest)
            return
        self._until_ms = now_ms + SHARES_MS
        self._set(frozenset(Flow(*flow) for flow in shares.over))

    def tick(self, now_ms: float) -> None:
        """They are not true for ever."""
        if now_ms >= self._until_ms:
            self.drop()

    def drop(self) -> None:
        """Whoever said so is gone."""
        self._set(NOBODY)

    def _set(self, over: frozenset[Flow]) -> None:
        if over != self._over:
            self._over = over
            self._tell(over)
