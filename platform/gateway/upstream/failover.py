"""Streams whose replica was lost go on with another one, where nobody could be shown anything twice.

The gateway decides, since it alone knows what arrived: it submits the request again under another number, so
that whatever still comes for the old one is a stray. One without tokens begins anew, with its age. One with
tokens goes on after them, if its tenant wants that and their ids are known: the next replica computes them as
part of the prompt.
"""

import logging
import time
from collections.abc import Callable

from gateway.errors import ApiError
from gateway.metrics import Metrics
from gateway.upstream.quarantine import Quarantine
from gateway.upstream.stream import Stream
from gpuworker.wire.messages import AnyMessage

_SEEN_HERE = ("disconnected", "unreachable")  # the dispatcher may not know yet that the replica is lost
MOVES_MOST = 2  # replicas that a request may be lost with, and still be tried again

logger = logging.getLogger(__name__)


class Failover:
    """`streams` is the upstream's table, `sid_next` a number that was never used, `dispatcher_tell` sends to
    the dispatcher, if there is one: without one the request is submitted when it is back."""

    def __init__(
        self,
        streams: dict[int, Stream],
        sid_next: Callable[[], int],
        dispatcher_tell: Callable[[AnyMessage], bool],
        metrics: Metrics,
    ) -> None:
        self._streams = streams
        self._sid_next = sid_next
        self._dispatcher_tell = dispatcher_tell
        self._metrics = metrics
        self.quarantine = Quarantine()

    def crashed(self, incarnation: str) -> None:
        """A replica's process ended by itself. Its connection's end may have been noticed before."""
        self.quarantine.crashed(incarnation)
        for stream in self._streams.values():
            if stream.lost_worker == incarnation:
                stream.lost_cause = "crashed"

    def move(self, stream: Stream, message: str, cause: str) -> ApiError | None:
        """Why it must end: clients read the message, operators the cause. None: another replica gets it."""
        stream.lost_cause, stream.lost_worker = cause, stream.worker
        now, lost = time.monotonic(), ApiError("replica_lost", message, retry_after_ms=1_000)
        if not stream.is_heard and stream.worker:
            self.quarantine.lost(stream)
            if refusal := self.quarantine.refusal(stream):
                return refusal
        if stream.cancel_reason or now >= stream.deadline_at or stream.submit.moves >= MOVES_MOST:
            return lost
        if not stream.may_move:
            return lost
        del self._streams[stream.sid]
        stream.move(self._sid_next(), now, stream.worker if cause in _SEEN_HERE else "")
        self._streams[stream.sid] = stream
        kind = "continued" if stream.submit.emitted else "restarted"
        self._metrics.failovers.labels(kind).inc()
        logger.warning(
            "request %s: its replica was lost (%s), it is %s after %d tokens",
            stream.request_id,
            cause,
            kind,
            stream.submit.emitted,
        )
        self._dispatcher_tell(stream.submit)
        return None
