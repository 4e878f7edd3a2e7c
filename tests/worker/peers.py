"""The other ends of a worker's sockets, for tests: a dispatcher, gateways, a controller."""

import asyncio
from dataclasses import dataclass, field
from typing import Self

from gpuworker.wire.connection import Connection, connect, listen
from gpuworker.wire.messages import (
    PROTOCOL_VERSION,
    AnyMessage,
    Collect,
    Collected,
    End,
    Frame,
    Hello,
    Refusal,
    Refused,
    Report,
    RowKey,
    Run,
    UsageCheckpoint,
    Welcome,
    new_incarnation,
)
from tests.worker.support import TIMEOUT_S, Waiter, hello_make, submit_make


@dataclass
class DispatcherEnd(Waiter):
    """Plays the dispatcher; knows one worker at a time."""

    address: str
    hellos: list[Hello] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    report_times: list[float] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    refuse_next: Refusal | None = None
    worker: Connection | None = None

    def __post_init__(self) -> None:
        Waiter.__init__(self)

    async def start(self) -> Self:
        self._server = await listen(self.address, self._received, self._closed)
        return self

    async def stop(self) -> None:
        self._server.close()
        if self.worker is not None:
            self.worker.abort("dispatcher stops")
        await self._server.wait_closed()

    def _received(self, connection: Connection, message: AnyMessage) -> None:
        match message:
            case Hello():
                self.hellos.append(message)
                if self.refuse_next is not None:
                    connection.send(self.refuse_next)
                    connection.close()
                    self.refuse_next = None
                else:
                    self.worker = connection
                    connection.send(Welcome(version=PROTOCOL_VERSION, id="dispatcher", incarnation="d"))
            case Report():
                self.reports.append(message)
                self.report_times.append(asyncio.get_running_loop().time())
            case Refused():
                self.refused.append(message)
            case _:
                raise AssertionError(f"a worker may not send {message}")
        self.notify()

    def _closed(self, connection: Connection, cause: str) -> None:
        if connection is self.worker:
            self.worker = None
        self.notify()

    def send(self, message: AnyMessage) -> None:
        assert self.worker is not None
        assert self.worker.send(message)

    @property
    def blocks(self) -> int:
        capacity = self.hellos[-1].capacity
        assert capacity is not None
        return capacity.blocks

    @property
    def ended(self) -> list[RowKey]:
        return [row for report in self.reports for row in report.ended]

    async def until_idle(self) -> Report:
        """A report that comes after this call and says that nothing is held."""
        seen = len(self.reports)

        def is_idle(report: Report) -> bool:
            held = (report.running, report.waiting, report.pending_prefill_tokens)
            return held == (0, 0, 0) and report.free_blocks == self.blocks

        await self.until(lambda: any(map(is_idle, self.reports[seen:])))
        return next(filter(is_idle, self.reports[seen:]))


@dataclass
class GatewayEnd(Waiter):
    """Plays one gateway incarnation."""

    address: str
    incarnation: str = field(default_factory=new_incarnation)
    frames: list[Frame] = field(default_factory=list)
    answers: list[AnyMessage] = field(default_factory=list)
    closed: str = ""
    connection: Connection | None = None

    def __post_init__(self) -> None:
        Waiter.__init__(self)

    async def connect(self, **hello: object) -> Self:
        self.closed = ""
        self.connection = await connect(self.address, self._received, self._closed)
        self.connection.send(hello_make("gateway", self.incarnation, **hello))
        await self.until(lambda: self.answers or self.closed)
        return self

    async def close(self) -> None:
        if self.connection is not None:
            self.connection.abort("test over")
            await self.until(lambda: self.closed)

    def _received(self, connection: Connection, message: AnyMessage) -> None:
        (self.frames if isinstance(message, Frame) else self.answers).append(message)  # type: ignore[arg-type]
        self.notify()

    def _closed(self, connection: Connection, cause: str) -> None:
        self.closed = cause
        self.notify()

    def send(self, message: AnyMessage) -> None:
        assert self.connection is not None
        assert self.connection.send(message)

    def run(self, sid: int, text: str, **fields: object) -> Run:
        return Run(gateway=self.incarnation, submit=submit_make(sid, text, **fields))

    def row(self, sid: int) -> RowKey:
        return RowKey(self.incarnation, sid)

    def text(self, sid: int, choice: int = 0) -> str:
        """All text of a choice so far; fails on a gap or a repetition."""
        pieces, count = [], 0
        for frame in self.frames:
            choices = frame.choices or [0] * len(frame.sids)
            for at, other in enumerate(frame.sids):
                if (other, choices[at]) == (sid, choice):
                    assert frame.starts[at] == count, f"row {sid}: expected {count}, got {frame.starts[at]}"
                    count += frame.counts[at]
                    pieces.append(frame.texts[at])
        return "".join(pieces)

    @property
    def ends(self) -> dict[int, End]:
        ends = [end for frame in self.frames for end in frame.ends]
        assert len({end.sid for end in ends}) == len(ends), "a row ended twice"
        return {end.sid: end for end in ends}

    def end_step(self, sid: int) -> int:
        return next(frame.step for frame in self.frames if any(end.sid == sid for end in frame.ends))

    async def until_ended(self, *sids: int) -> None:
        await self.until(lambda: set(sids) <= self.ends.keys())


async def usage_collect(
    address: str, after: int = 0, limit: int = 1000, journal: str | None = None
) -> Collected:
    """What a controller gets for one Collect."""
    answers: asyncio.Queue[AnyMessage] = asyncio.Queue()
    closed = asyncio.Event()
    connection = await connect(
        address, lambda _, message: answers.put_nowait(message), lambda *_: closed.set()
    )
    async with asyncio.timeout(TIMEOUT_S):
        connection.send(hello_make("controller", new_incarnation()))
        assert isinstance(await answers.get(), Welcome)
        if journal is None:  # a controller learns it from the first answer
            connection.send(Collect(journal="", after=0, limit=1))
            first = await answers.get()
            assert isinstance(first, Collected)
            journal = first.journal
        connection.send(Collect(journal=journal, after=after, limit=limit))
        collected = await answers.get()
    connection.close()
    await closed.wait()
    assert isinstance(collected, Collected)
    return collected


async def usage_until_ended(address: str, *request_ids: str, after: int = 0) -> dict[str, UsageCheckpoint]:
    """The last record of each request. A row's end is on disk a moment after its gateway knows of it."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            last = last_of_each((await usage_collect(address, after)).records)
            if all(name in last and last[name].reason for name in request_ids):
                return last


def last_of_each(records: list[UsageCheckpoint]) -> dict[str, UsageCheckpoint]:
    return {record.request_id: record for record in records}
