"""A simulated gateway, with the production gateway's rules for what ends a stream."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from gpuworker.wire.messages import (
    AnyMessage,
    Cancel,
    Ended,
    Heartbeat,
    Placed,
    RowKey,
    Submit,
    WorkerDown,
    WorkerUp,
)
from tests.dispatch.client_node import Client, Fleet
from tests.dispatch.network import Clock, End
from tests.dispatch.peers import hello
from tests.dispatch.worker_node import Worker

SETTLE_MS, UNREACHABLE_MS, DEADLINE_GRACE_MS, NO_DISPATCHER_MS = 5_000, 5_000, 5_000, 10_000


@dataclass
class Stream:
    submit: Submit = field(repr=False)
    born: float
    deadline_at: float
    worker: str = ""
    placed_at: float = 0.0
    received: bool = False
    cancelled_at: float = -1.0
    cancel_reason: str = ""
    settled: str = ""  # how
    final_words: list[str] = field(default_factory=list)  # every ending that was said, also after the first


class Gateway(Client):
    """Streams with the gateway's own rules for what ends them, its watchdog included."""

    def __init__(self, clock: Clock, fleet: Fleet, name: str, incarnation: str) -> None:
        self.streams: dict[int, Stream] = {}
        self._ups: set[str] = set()
        self._lost_at = clock.now
        super().__init__(clock, fleet, name, incarnation)
        self.every(lambda: 1_000, self._watch)

    def greeting(self) -> AnyMessage:
        return hello("gateway", self.name, self.incarnation)

    def joined(self) -> None:
        self._lost_at = -1.0
        for sid, stream in self.streams.items():
            if stream.settled:
                continue
            if stream.cancel_reason:
                self.send(Cancel(sid=sid, reason=stream.cancel_reason))
            elif not stream.worker:
                waited_ms, left_ms = self.clock.now - stream.born, stream.deadline_at - self.clock.now
                again = replace(stream.submit, waited_ms=int(waited_ms), deadline_ms=max(1, int(left_ms)))
                self.send(again)

    def closed(self, end: End) -> None:
        super().closed(end)
        self._lost_at = self.clock.now

    def beat(self) -> None:
        self.send(Heartbeat())

    def request(self, message: Submit) -> bool:
        if not self.send(message):
            return False
        self.streams[message.sid] = Stream(message, self.clock.now, self.clock.now + message.deadline_ms)
        return True

    def cancel(self, sid: int, reason: str) -> None:
        stream = self.streams[sid]
        if not stream.settled and not stream.cancel_reason:
            stream.cancel_reason, stream.cancelled_at = reason, self.clock.now
            self.send(Cancel(sid=sid, reason=reason))
            self._tell_worker(stream.worker, sid, reason)

    def told(self, message: AnyMessage) -> None:
        match message:
            case Placed(sid=sid, worker=worker):
                stream = self.streams.get(sid)
                if stream and not stream.settled and not stream.received:
                    stream.worker, stream.placed_at = worker, self.clock.now
                    if stream.cancel_reason:
                        self._tell_worker(worker, sid, stream.cancel_reason)
            case Ended(sid=sid, code=code):
                self._settle(sid, f"dispatcher:{code}")
            case WorkerUp(incarnation=incarnation):
                self._ups.add(incarnation)
            case WorkerDown(incarnation=incarnation):
                self._ups.discard(incarnation)
                self.worker_gone(incarnation)

    def framed(self, worker: Worker, sid: int, end: str) -> None:
        stream = self.streams.get(sid)
        if stream is None or stream.settled or (stream.worker != worker.incarnation and stream.received):
            if stream is not None and end:
                stream.final_words.append(f"worker:{end}")
            elif not end:
                self._tell_worker(worker.incarnation, sid, "error")
            return
        assert stream.submit.digest == worker.digest, "answered with other weights"
        stream.worker, stream.received = worker.incarnation, True
        if end:
            self._settle(sid, f"worker:{end}")

    def worker_gone(self, incarnation: str, *, tell: bool = False) -> None:
        for sid, stream in self.streams.items():
            if stream.worker == incarnation and not stream.settled:
                self._settle(sid, "lost")
                if tell:
                    self.send(Cancel(sid=sid, reason="error"))

    def _settle(self, sid: int, how: str) -> None:
        stream = self.streams[sid]
        stream.settled = stream.settled or how
        stream.final_words.append(how)

    def _tell_worker(self, incarnation: str, sid: int, reason: str) -> None:
        if worker := self.fleet.worker(incarnation):
            row = RowKey(self.incarnation, sid)
            self.clock.after(
                self.clock.random.uniform(0.1, 20), lambda: worker.post(lambda: worker.cancel(row, reason))
            )

    def _watch(self) -> None:
        now = self.clock.now
        for sid, stream in self.streams.items():
            if stream.settled:
                continue
            if stream.cancel_reason:
                if now - stream.cancelled_at > SETTLE_MS:
                    stream.settled = "timeout"
            elif now > stream.deadline_at + DEADLINE_GRACE_MS:
                self.cancel(sid, "deadline")
            elif stream.worker:
                if not self.fleet.worker(stream.worker) and now - stream.placed_at > UNREACHABLE_MS:
                    self._settle(sid, "lost")
            elif self._lost_at >= 0 and now - self._lost_at > NO_DISPATCHER_MS:
                self._settle(sid, "lost")
