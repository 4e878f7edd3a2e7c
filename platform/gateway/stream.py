"""One submitted request as the gateway holds it. Token frames write into it, its response task reads from it.

A stream ends twice: for the client by `failure` or by the end of the text, and for the ledger by
`is_settled`, after which nothing more is produced anywhere. Only then its usage is recorded.
"""

import asyncio
from uuid import UUID

import msgspec

from gateway.errors import ApiError
from gateway.sse import EventFrame
from gateway.validation import Generation
from gpuworker.wire.messages import End, Submit
from modelsvc.contracts import ModelRoute
from tenants.contracts import KeyGrant


class Stream:
    """Times are monotonic seconds. With a `frame` each text becomes an event; without, texts are kept."""

    __slots__ = (
        "accepted_at",
        "cancel_reason",
        "deadline_at",
        "disconnected",
        "end",
        "ended_code",
        "failure",
        "first_token_at",
        "frame",
        "generation",
        "grant",
        "guard",
        "is_settled",
        "last_token_at",
        "last_written_at",
        "over_since",
        "pending",
        "pending_bytes",
        "ping_due",
        "placed_at",
        "received",
        "request_id",
        "route",
        "sid",
        "submit",
        "submitted_at",
        "wake",
        "worker",
        "worker_id",
        "writing_since",
    )

    def __init__(
        self,
        *,
        sid: int,
        request_id: UUID,
        grant: KeyGrant,
        route: ModelRoute,
        generation: Generation,
        submit: Submit,
        frame: EventFrame | None,
        accepted_at: float,
        deadline_at: float,
        now: float,
    ) -> None:
        self.sid = sid
        self.request_id = request_id
        self.grant = grant
        self.route = route
        self.generation = generation
        self.submit = submit
        self.frame = frame
        self.accepted_at = accepted_at
        self.submitted_at = now
        self.deadline_at = deadline_at
        self.placed_at = 0.0
        self.first_token_at = 0.0
        self.last_token_at = 0.0
        self.last_written_at = now
        self.writing_since = 0.0  # 0 while no write waits for the client
        self.over_since = 0.0  # 0 while the pending bytes are within their bound
        self.worker = ""  # incarnation
        self.worker_id = ""
        self.received = 0  # output tokens
        self.pending: list[bytes] = []
        self.pending_bytes = 0
        self.ping_due = False
        self.disconnected = False
        self.cancel_reason = ""
        self.end: End | None = None
        self.ended_code = ""  # of the dispatcher, or replica_lost
        self.failure: ApiError | None = None
        self.is_settled = False
        self.guard: asyncio.Timeout | None = None  # rescheduled to now to end a write nobody reads
        self.wake = asyncio.Event()

    def append(self, start: int, count: int, text: str, now: float) -> bool:
        """One row of a token frame. False when tokens are missing before it."""
        if start != self.received:
            return False
        self.received = start + count
        self.last_token_at = now
        if text and not self.cancel_reason:
            data = self.frame.encode(text) if self.frame is not None else text.encode()
            self.pending.append(data)
            self.pending_bytes += len(data)
            self.wake.set()
        return True

    def take(self, max_bytes: int) -> bytes:
        """Pending events joined, at least one, up to `max_bytes` where that splits between events."""
        if self.pending_bytes <= max_bytes:
            data = b"".join(self.pending)
            self.pending.clear()
            self.pending_bytes = 0
            return data
        size = count = 0
        for chunk in self.pending:
            if count and size + len(chunk) > max_bytes:
                break
            size += len(chunk)
            count += 1
        data = b"".join(self.pending[:count])
        del self.pending[:count]
        self.pending_bytes -= size
        return data

    def drop_pending(self) -> None:
        self.pending.clear()
        self.pending_bytes = 0

    def resubmit(self, now: float) -> Submit:
        """The same request for a dispatcher that may not know it, with its age."""
        return msgspec.structs.replace(
            self.submit,
            waited_ms=int((now - self.submitted_at) * 1000),
            deadline_ms=max(1, int((self.deadline_at - now) * 1000)),
        )

    def fail(self, failure: ApiError) -> None:
        """The first failure is the one the client sees."""
        if self.failure is None and self.end is None:
            self.failure = failure
        self.wake.set()

    def settle(self) -> None:
        """Nothing more will come from dispatcher or worker."""
        self.is_settled = True
        self.wake.set()

    def leave(self) -> None:
        """The client is gone."""
        self.disconnected = True
        self.wake.set()
