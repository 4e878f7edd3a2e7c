"""The stream table, and the dispatcher's side of it: submit, cancel, and what the dispatcher says."""

import time
from collections.abc import Iterable

import msgspec

from gateway.errors import ApiError, LimitDetail, overloaded
from gateway.metrics import Metrics
from gateway.settings import Settings
from gateway.upstream.failover import Failover
from gateway.upstream.link import Link
from gateway.upstream.pressure import PressureBoard
from gateway.upstream.replicas import Replicas
from gateway.upstream.stream import Stream
from gpuworker.wire.messages import (
    PROTOCOL_VERSION,
    AnyMessage,
    Cancel,
    Ended,
    Hello,
    Pause,
    Placed,
    Pressure,
    Resume,
    WorkerDown,
    WorkerUp,
    new_incarnation,
)

DISPATCHER_SILENCE_S = 5.0
TAKEOVER_S = 3.0  # a standby is active after two, and we have found it


class Upstream:
    """`streams` holds every submitted request until its usage is recorded."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.incarnation = new_incarnation()
        self._gateway_id = settings.gateway_id
        self.streams: dict[int, Stream] = {}
        self.dispatcher_lost_at = time.monotonic()  # 0 while connected
        self.dispatcher_joined_at = 0.0
        self.pressure = PressureBoard()
        self._last_sid = 0
        hello = Hello(
            version=PROTOCOL_VERSION,
            role="gateway",
            id=settings.gateway_id,
            incarnation=self.incarnation,
            secret=settings.wire_secret,
        )
        self.dispatcher = Link(
            "dispatcher",
            settings.dispatch_address,
            hello,
            accept=lambda _: "",
            on_ready=self._ready,
            on_message=self._said,
            on_lost=self._lost,
            silence_s=DISPATCHER_SILENCE_S,
            tls=settings.tls,
            role="dispatcher",
        )
        self._failover = failover = Failover(self.streams, self.sid_next, self.dispatcher.send, metrics)
        self.replicas = Replicas(hello, self.streams, metrics, self.dispatcher.send, failover, settings.tls)

    async def run(self) -> None:
        """Until cancelled; then every connection is closed."""
        try:
            await self.dispatcher.run()
        finally:
            self.replicas.close()

    def sid_next(self) -> int:
        self._last_sid += 1
        return self._last_sid

    def submit(self, stream: Stream) -> None:
        """Raises ApiError when there is no dispatcher, or replicas die of the request: then nothing was
        submitted."""
        if refusal := self._failover.quarantine.refusal(stream):
            raise refusal
        if not self.dispatcher.send(stream.submit) and not self._is_taken_over:
            raise self.dispatcher_away()
        self.streams[stream.sid] = stream

    @property
    def is_served(self) -> bool:
        """A dispatcher is there, or will be in a moment: then requests wait here until `_ready`."""
        return self.dispatcher.is_ready or self._is_taken_over

    @property
    def _is_taken_over(self) -> bool:
        now = time.monotonic()
        since_s = now - (self.dispatcher_lost_at or now)  # its end may not have been told yet
        return self.dispatcher.has_standby and self.dispatcher_joined_at > 0 and since_s < TAKEOVER_S

    def dispatcher_away(self) -> ApiError:
        limit = LimitDetail(name="dispatcher", scope="gateway", subject=self._gateway_id)
        return overloaded("the dispatcher cannot be reached", limit=limit)

    def cancel(self, stream: Stream, reason: str) -> None:
        """Tell everybody who may hold it. Idempotent; the stream settles when one of them answers."""
        if stream.is_over or stream.cancel_reason:
            return
        stream.cancel_reason, stream.cancelled_at = reason, time.monotonic()
        message = Cancel(sid=stream.sid, reason=reason)
        self.dispatcher.send(message)
        self.replicas.tell(stream.worker, message)

    def pause(self, streams: Iterable[Stream], is_paused: bool) -> None:
        """Their client is behind: the replica computes nothing more for them meanwhile."""
        for stream in streams:
            stream.is_paused = is_paused
            if not stream.is_settled:
                message = Pause(sid=stream.sid) if is_paused else Resume(sid=stream.sid)
                self.replicas.tell(stream.worker, message)

    def forget(self, stream: Stream) -> None:
        self.streams.pop(stream.sid, None)
        stream.release()

    def _ready(self) -> None:
        """A dispatcher that was away, or is new, is told what waits for it.

        A stream that was placed but never heard from is submitted too: the old dispatcher may have died
        between telling us and telling the worker. One that is known keeps its place.
        """
        self.dispatcher_lost_at = 0.0
        self.replicas.dispatcher_joined()
        now = self.dispatcher_joined_at = time.monotonic()
        for stream in self.streams.values():
            if stream.is_settled:
                continue
            if not stream.is_heard:
                self.dispatcher.send(stream.resubmit(now))
            if stream.cancel_reason:
                self.dispatcher.send(Cancel(sid=stream.sid, reason=stream.cancel_reason))

    def _lost(self, _: str) -> None:
        self.dispatcher_lost_at = time.monotonic()

    def _said(self, message: AnyMessage) -> None:
        match message:
            case Placed():
                stream = self.streams.get(message.sid)
                if stream is not None and not stream.is_settled and not stream.is_heard:
                    self.replicas.placed(stream, message)
            case Ended():
                stream = self.streams.get(message.sid)
                # One that runs was submitted again to a dispatcher that does not know where.
                if stream is not None and (not stream.is_heard or stream.cancel_reason):
                    _end(stream, message)
            case Pressure():
                self.pressure.said(message)
            case WorkerUp():
                self.replicas.up(message)
            case WorkerDown():
                self.replicas.down(message)


def _refusal(stream: Stream, ended: Ended) -> ApiError:
    """No replica will ever take it, so the client must not try again."""
    names, message = stream.owner.names, ended.message
    match ended.reason:
        case "misrouted":  # our defect, not the request's
            return overloaded(message)
        case "invalid_grammar":
            return ApiError("invalid_value", message, param=names.grammar)
        case "too_long":
            return ApiError("context_length_exceeded", message, param=names.prompt)
        case _:
            return ApiError("invalid_value", message, param=names.prompt)


def _end(stream: Stream, ended: Ended) -> None:
    if stream.is_settled:
        return
    stream.ended_code = ended.code
    retry_after_ms = ended.retry_after_ms or 1_000
    fail = stream.owner.fail
    match ended.code:
        case "queue_full" | "deadline_unmeetable" | "shed":
            limit = LimitDetail(
                name=ended.name or "queue",
                scope="model",
                subject=stream.submit.model,
                used=ended.used or None,
                limit=ended.limit or None,
                clears_in_ms=retry_after_ms,
            )
            code = "queue_full" if ended.code == "shed" else ended.code
            if not ended.retry_after_ms:  # no place within a minute, or it takes too long by itself
                limit = msgspec.structs.replace(limit, clears_in_ms=None)
                fail(ApiError(code, ended.message, limit=limit, headers=[(b"x-should-retry", b"false")]))
            else:
                fail(ApiError(code, ended.message, retry_after_ms=retry_after_ms, limit=limit))
        case "deadline_exceeded" | "deadline":
            stream.owner.fail_late(ended.message)
        case "cancelled":
            fail(ApiError("request_cancelled", ended.message, retry_after_ms=retry_after_ms))
        case "refused":
            fail(_refusal(stream, ended))
        case _:
            limit = LimitDetail(name="replicas", scope="model", subject=stream.submit.model)
            fail(overloaded(ended.message, retry_after_ms, limit=limit))
    stream.settle()
