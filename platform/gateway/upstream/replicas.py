"""The workers' side of the stream table: connections to the replicas, and the frames that come over them.

Frames are written into their streams inside the read callback: no queue, no task, one wake-up a stream.
What is missing is never guessed: a gap ends the stream with an error.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from itertools import repeat

from msgspec.structs import replace

from gateway.errors import ApiError
from gateway.metrics import Metrics
from gateway.upstream.failover import Failover
from gateway.upstream.link import Link
from gateway.upstream.stream import Stream
from gpuworker.wire.messages import (
    PROTOCOL_VERSION,
    AnyMessage,
    Cancel,
    End,
    Frame,
    Hello,
    Pause,
    Placed,
    TokenLogprobs,
    Welcome,
    WorkerDown,
    WorkerUp,
)
from gpuworker.wire.tls import WireTls

# The dispatcher knows sooner, unless it is lost too, or only this connection is cut.
WORKER_SILENCE_S = 5.0
_NO_LOGPROBS: list[TokenLogprobs] = []

logger = logging.getLogger(__name__)


class Replica:
    """A worker the dispatcher named, and our token connection to it."""

    __slots__ = ("is_confirmed", "link", "task", "up")

    def __init__(self, up: WorkerUp, link: Link) -> None:
        self.up = up
        self.is_confirmed = True  # named since the dispatcher was last joined
        self.link = link
        self.task = asyncio.create_task(link.run(), name=f"worker {up.id}")


class Replicas:
    """`streams` is the upstream's table; `dispatcher_tell` sends to the dispatcher, if there is one."""

    def __init__(
        self,
        hello: Hello,
        streams: dict[int, Stream],
        metrics: Metrics,
        dispatcher_tell: Callable[[AnyMessage], bool],
        failover: Failover,
        tls: WireTls | None = None,
    ) -> None:
        self._tls = tls
        self._hello = hello
        self._streams = streams
        self._metrics = metrics
        self._dispatcher_tell = dispatcher_tell
        self._failover = failover
        self._replicas: dict[str, Replica] = {}  # by incarnation

    def close(self) -> None:
        for replica in self._replicas.values():
            replica.task.cancel()

    @property
    def known(self) -> int:
        return len(self._replicas)

    def ready(self) -> list[WorkerUp]:
        return [replica.up for replica in self._replicas.values() if replica.link.is_ready]

    def is_ready(self, incarnation: str) -> bool:
        replica = self._replicas.get(incarnation)
        return replica is not None and replica.link.is_ready

    def tell(self, incarnation: str, message: AnyMessage) -> None:
        if replica := self._replicas.get(incarnation):
            replica.link.send(message)

    def unreachable(self, stream: Stream) -> None:
        """The dispatcher placed it where this gateway gets no connection."""
        sid = stream.sid
        self._lost(stream, "the replica was lost: no connection to it", "unreachable")
        self._dispatcher_tell(Cancel(sid=sid, reason="error"))

    def _misplaced(self, stream: Stream, up: WorkerUp) -> None:
        """A replica with other weights took it all the same. Nothing of that was shown."""
        sid, stream.worker = stream.sid, up.incarnation
        logger.error("request %s ran on other weights, on %s", stream.request_id, stream.worker)
        self._lost(stream, "the replica held other weights", "misplaced")
        self._dispatcher_tell(Cancel(sid=sid, reason="error"))

    def _lost(self, stream: Stream, message: str, cause: str) -> None:
        """Its replica produces nothing more for it. The client reads the message: no inner causes."""
        if stream.is_settled or (error := self._failover.move(stream, message, cause)) is None:
            return
        stream.ended_code = "replica_lost"
        stream.owner.fail(error)
        stream.settle()

    def dispatcher_joined(self) -> None:
        """It names its workers next; a WorkerDown may have been missed meanwhile."""
        for replica in self._replicas.values():
            replica.is_confirmed = False

    def prune(self) -> None:
        """Forget workers that neither the dispatcher names nor anybody answers for."""
        for incarnation, replica in list(self._replicas.items()):
            if not replica.is_confirmed and not replica.link.is_ready:
                replica.task.cancel()
                del self._replicas[incarnation]

    def up(self, up: WorkerUp) -> None:
        if known := self._replicas.get(up.incarnation):
            if known.up == up or known.link.is_ready:  # what the process itself said is not doubted
                known.is_confirmed = True
                return
            known.task.cancel()
        link = Link(
            f"worker {up.id}",
            up.address,
            replace(self._hello, to=up.incarnation),
            accept=partial(_welcome_judge, up),
            on_ready=lambda: logger.info("worker %s connected", up.id),
            on_message=partial(self._said, up),
            on_lost=partial(self._link_lost, up),
            silence_s=WORKER_SILENCE_S,
            tls=self._tls,
            role="worker",
            peer_id=up.id,
        )
        self._replicas[up.incarnation] = Replica(up, link)

    def down(self, down: WorkerDown) -> None:
        if down.crashed:
            self._failover.crashed(down.incarnation)
        if replica := self._replicas.pop(down.incarnation, None):
            replica.task.cancel()
        cause = "crashed" if down.crashed else "silent"
        if self._streams_end(down.incarnation, "the replica was lost", cause):
            logger.warning("worker %s is down, its streams end: %s", down.id, down.cause)

    def placed(self, stream: Stream, placed: Placed) -> None:
        stream.worker, stream.worker_id = placed.worker, ""
        stream.placed_at = time.monotonic()
        replica = self._replicas.get(placed.worker)
        if replica is None:
            return
        if replica.up.digest == stream.submit.digest:
            stream.worker_id = replica.up.id
        else:  # it will refuse, and the dispatcher place it elsewhere
            logger.error("request %s was placed on other weights", stream.request_id)
        if stream.cancel_reason:
            replica.link.send(Cancel(sid=stream.sid, reason=stream.cancel_reason))

    def _link_lost(self, up: WorkerUp, _: str) -> None:
        message = "the connection to the replica was lost"
        for sid in self._streams_end(up.incarnation, message, "disconnected"):
            self._dispatcher_tell(Cancel(sid=sid, reason="error"))

    def _streams_end(self, incarnation: str, message: str, cause: str) -> list[int]:
        """Their numbers there."""
        lost = [s for s in self._streams.values() if s.worker == incarnation and not s.is_settled]
        sids = [stream.sid for stream in lost]
        for stream in lost:
            self._lost(stream, message, cause)
        return sids

    # -- token frames -------------------------------------------------------------------------------------

    def _said(self, up: WorkerUp, message: AnyMessage) -> None:
        if not isinstance(message, Frame):
            return
        now = time.monotonic()
        streams, observe = self._streams, self._metrics.inter_token.observe
        choices = message.choices or repeat(0)
        logprobs = message.logprobs or repeat(_NO_LOGPROBS)
        packed = message.ids or repeat(b"")
        for prompt in message.prompts:  # they come before the first tokens
            stream = streams.get(prompt.sid)
            if stream is not None and self._is_bound(stream, up):
                try:
                    stream.append_prompt(prompt)
                except Exception as error:
                    _defect(stream, error)
        for sid, choice, start, count, text, tokens, ids in zip(  # noqa: B905 - endless ones may stand for empty columns
            message.sids, choices, message.starts, message.counts, message.texts, logprobs, packed
        ):
            stream = streams.get(sid)
            if stream is None or not self._is_bound(stream, up):
                self._stray(up, sid, message.ends)
                if stream is not None and not stream.is_settled and not self._has_another(stream, up):
                    self._misplaced(stream, up)
                continue
            before = stream.last_token_at
            if stream.is_paused and not stream.is_heard:  # its client fell behind before it ran here
                self.tell(up.incarnation, Pause(sid=sid))
            try:
                is_next = stream.append(choice, start, count, text, tokens, ids)
            except Exception as error:
                _defect(stream, error)
                continue
            if not is_next:
                self._gap(stream, f"tokens are missing before token {start} of choice {choice}")
            elif count:
                stream.last_token_at = now
                if before:
                    observe((now - before) / count, count)
                else:
                    stream.begin(now)
        for choice_end in message.choice_ends:
            stream = streams.get(choice_end.sid)
            if stream is not None and self._is_bound(stream, up):
                stream.choice_end(
                    choice_end.choice, choice_end.reason, choice_end.output_tokens, choice_end.stopped_by
                )
        for end in message.ends:
            stream = streams.get(end.sid)
            if stream is None or (end.reason == "moved" and stream.worker not in ("", up.incarnation)):
                continue  # another replica has it already
            if self._is_bound(stream, up):
                self._end(stream, end)

    def _is_bound(self, stream: Stream, up: WorkerUp) -> bool:
        """Whether this replica may write into the stream; a frame may overtake the dispatcher's Placed.

        A second replica, or other weights than the client was promised, are refused.
        """
        if stream.is_settled or up.digest != stream.submit.digest:  # whatever was said of it before
            return False
        if stream.worker_id and stream.worker == up.incarnation:
            return True
        if stream.is_heard:
            return False
        if stream.worker not in ("", up.incarnation):  # run twice, by a dispatcher that did not know
            self.tell(stream.worker, Cancel(sid=stream.sid, reason="error"))
        stream.worker, stream.worker_id = up.incarnation, up.id
        stream.placed_at = time.monotonic()
        return True

    def _has_another(self, stream: Stream, up: WorkerUp) -> bool:
        """Whether a replica computes it that may, so that this one is too many."""
        return stream.is_heard or stream.worker not in ("", up.incarnation)

    def _stray(self, up: WorkerUp, sid: int, ends: list[End]) -> None:
        self._metrics.stray_rows.inc()
        if all(end.sid != sid for end in ends):
            self.tell(up.incarnation, Cancel(sid=sid, reason="error"))

    def _gap(self, stream: Stream, message: str) -> None:
        """Frames were lost with a connection. What came before may have been shown."""
        if stream.is_settled:  # it is run again, by a dispatcher that did not know
            self.tell(stream.worker, Cancel(sid=stream.sid, reason="error"))
            return
        if stream.cancel_reason:
            return
        self._metrics.gaps.inc()
        logger.error("request %s: %s", stream.request_id, message)
        if stream.may_move:
            sid, worker = stream.sid, stream.worker
            self._lost(stream, "part of the output was lost on its way", "disconnected")
            self.tell(worker, Cancel(sid=sid, reason="error"))
            self._dispatcher_tell(Cancel(sid=sid, reason="error"))
            return
        stream.owner.fail(ApiError("stream_gap", "part of the output was lost on its way"))

    def _end(self, stream: Stream, end: End) -> None:
        if stream.is_settled:
            return
        if end.reason == "moved" and end.message:  # the server that its replica stands for failed
            self._lost(stream, end.message, "upstream_failed")
            return
        if end.reason == "moved":  # its replica stops and had no time left for it
            self._lost(stream, "the replica was shut down", "shut_down")
            return
        is_whole = end.reason not in ("stop", "length") or end.output_tokens == stream.output_tokens
        if not is_whole:
            self._gap(stream, f"{stream.output_tokens} of {end.output_tokens} tokens arrived")
            if stream.is_settled or stream.sid != end.sid:  # another replica goes on
                return
        stream.end = end
        fail = stream.owner.fail
        match end.reason:
            case "stop" | "length":
                if stream.submit.n == 1:
                    stream.choice_end(0, end.reason, end.output_tokens, end.stopped_by)
            case "deadline":
                stream.owner.fail_late(end.message or "the deadline passed while the model was running")
            case "cancelled":
                fail(ApiError("request_cancelled", "the request was cancelled", retry_after_ms=1_000))
            case _:
                fail(ApiError("engine_error", end.message or "the engine failed on this request"))
        stream.settle()


def _defect(stream: Stream, error: Exception) -> None:
    """Whatever went wrong with one stream's text must not end the others': they share this connection."""
    logger.error("request %s: its text cannot be put into words", stream.request_id, exc_info=error)
    stream.owner.fail(ApiError("internal_error", "the gateway failed on this request"))


def _welcome_judge(up: WorkerUp, welcome: Welcome) -> str:
    if welcome.version != PROTOCOL_VERSION:
        return f"speaks version {welcome.version}, not {PROTOCOL_VERSION}"
    if welcome.incarnation != up.incarnation:
        return "another process listens at the worker's address"
    if welcome.digest != up.digest:
        return f"holds weights {welcome.digest}, not {up.digest}"
    return ""
