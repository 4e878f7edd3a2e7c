"""One request from its submission until its usage is recorded, whoever still listens by then.

It ends twice: for its client by a failure or the end of the text, and for the ledger when all its streams are
settled. `Gateway.conclude` then records the usage and says the last word to the sink.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from billing.contracts import Price
from gateway.access.revocation import revoked
from gateway.answer_parts import Sink
from gateway.errors import ApiError, deadline_exceeded
from gateway.generation import Generation
from gateway.upstream.stream import Stream
from modelsvc.contracts import ModelRoute
from tenants.contracts import KeyGrant

if TYPE_CHECKING:
    from gateway.answers.recorder import Recorder
    from gateway.quotas.quotas import Reservation

_CANCEL_REASONS = {
    "deadline_exceeded": "deadline",
    "request_cancelled": "cancelled",
    "invalid_api_key": "cancelled",
}


class Job:
    """Times are monotonic seconds. `cancel` tells dispatcher and worker, `conclude` is called once."""

    __slots__ = (
        "_cancel",
        "_conclude",
        "_unsettled",
        "accepted_at",
        "attempt",
        "deadline_at",
        "failure",
        "grant",
        "has_client",
        "is_concluding",
        "is_stream",
        "names",
        "price",
        "recorder",
        "request_id",
        "reservation",
        "route",
        "sink",
        "stop_token_ids",
        "streams",
    )

    def __init__(
        self,
        *,
        request_id: UUID,
        attempt: int,
        grant: KeyGrant,
        route: ModelRoute,
        generation: Generation,
        sink: Sink,
        recorder: "Recorder | None",
        reservation: "Reservation",
        price: Price | None,
        accepted_at: float,
        deadline_at: float,
        cancel: Callable[[Stream, str], None],
        conclude: Callable[["Job"], object],
    ) -> None:
        self.request_id = request_id
        self.attempt = attempt
        self.grant = grant
        self.route = route
        self.is_stream = generation.stream
        self.stop_token_ids = generation.stop_token_ids
        self.names = generation.names
        self.sink = sink
        self.recorder = recorder
        self.reservation = reservation
        self.price = price
        self.accepted_at = accepted_at
        self.deadline_at = deadline_at
        self.streams: list[Stream] = []
        self.failure: ApiError | None = None
        self.has_client = True
        self.is_concluding = False
        self._cancel = cancel
        self._conclude = conclude
        self._unsettled = 0

    def add(self, stream: Stream) -> None:
        self.streams.append(stream)
        self._unsettled += 1

    @property
    def is_complete(self) -> bool:
        """Every choice came to its own end, and all its text to the sink: what follows a cancel does not."""
        return all(
            stream.end is not None and stream.end.reason in ("stop", "length") and not stream.cancel_reason
            for stream in self.streams
        )

    def fail(self, error: ApiError) -> None:
        """The first failure is the one that is told; what still runs is cancelled. Idempotent."""
        if self.is_concluding:
            return
        if self.failure is None:
            self.failure = error
        self.cancel(_CANCEL_REASONS.get(self.failure.code, "error"))

    def fail_late(self, message: str) -> None:
        """Its deadline passed. Idempotent."""
        limit_ms = round((self.deadline_at - self.accepted_at) * 1000)
        used_ms = round((time.monotonic() - self.accepted_at) * 1000)
        self.fail(deadline_exceeded(message, request_id=self.request_id, limit_ms=limit_ms, used_ms=used_ms))

    def revoke(self) -> None:
        """Its key is not valid any more. Idempotent."""
        self.fail(revoked())

    def cancel(self, reason: str) -> None:
        for stream in self.streams:
            self._cancel(stream, reason)

    def stream_settled(self) -> None:
        self._unsettled -= 1
        if not self._unsettled and not self.is_concluding:
            self.is_concluding = True
            self._conclude(self)
