"""The side of a prefill worker: computes prompts for other workers and sends them the KV.

A prompt is a row of the engine like any other, named after the worker that asked; it ends unanswered when
that worker goes away. It makes no usage: the worker that decodes bills the request once.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from gpuworker.backends.base import Backend
from gpuworker.engine.transfer import PrefillResult
from gpuworker.kv_transfer import messages_of
from gpuworker.wire.connection import Connection
from gpuworker.wire.framing import MAX_FRAME_BYTES
from gpuworker.wire.messages import Heartbeat, Refused, RowKey, Sampling, Submit

SILENCE_S = 3.0  # the others heartbeat too
MAX_UNSENT_BYTES = 512 << 20  # with more computed and not yet read, nothing new is begun
MAX_BLOCK_BYTES = MAX_FRAME_BYTES - (64 << 10)

logger = logging.getLogger(__name__)

Answer = tuple[int, PrefillResult]
Problem = tuple[str, str]  # code and message of a refusal


@dataclass(slots=True, eq=False)
class _Visitor:
    incarnation: str
    connection: Connection
    rows: set[int] = field(default_factory=set)  # asked for, neither answered nor given up
    answers: "asyncio.Queue[Answer]" = field(default_factory=asyncio.Queue)
    sender: "asyncio.Task[None] | None" = None
    unsent_bytes: int = 0


class PrefillService:
    """`problem` says why a Submit cannot be served now; `begun` is told of those that are begun."""

    def __init__(
        self, backend: Backend, problem: Callable[[Submit], Problem | None], begun: Callable[[Submit], None]
    ) -> None:
        self._backend = backend
        self._problem = problem
        self._begun = begun
        self._visitors: dict[Connection, _Visitor] = {}

    @property
    def rows(self) -> int:
        return sum(len(visitor.rows) for visitor in self._visitors.values())

    def joined(self, incarnation: str, connection: Connection) -> None:
        visitor = self._visitors[connection] = _Visitor(incarnation, connection)
        visitor.sender = asyncio.create_task(self._send_answers(visitor))

    def left(self, connection: Connection) -> None:
        visitor = self._visitors.pop(connection)
        if visitor.sender is not None:
            visitor.sender.cancel()
        for sid in list(visitor.rows):
            self._give_up(visitor, sid)

    def submit(self, connection: Connection, submit: Submit) -> None:
        visitor, sid = self._visitors[connection], submit.sid
        unsent_bytes = sum(visitor.unsent_bytes for visitor in self._visitors.values())
        if problem := self._problem(submit):
            self._refuse(visitor, sid, *problem)
        elif unsent_bytes > MAX_UNSENT_BYTES:
            self._refuse(visitor, sid, "capacity", "too much KV waits to be read")
        elif sid not in visitor.rows:
            visitor.rows.add(sid)
            self._begun(submit)
            row = RowKey(visitor.incarnation, sid)
            self._backend.prefill(row, _prompt_only(submit), lambda result: self._done(visitor, sid, result))

    def cancel(self, connection: Connection, sid: int) -> None:
        """Unknown and answered prompts are ignored."""
        visitor = self._visitors[connection]
        if sid in visitor.rows:
            self._give_up(visitor, sid)

    def give_up(self, message: str) -> None:
        """All prompts, half sent answers included: whoever asked computes them without waiting."""
        for visitor in self._visitors.values():
            for sid in list(visitor.rows):
                self._give_up(visitor, sid)
                self._refuse(visitor, sid, "draining", message)

    def tick(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in list(self._visitors):
            if now - connection.last_received > SILENCE_S:
                connection.abort("the worker is silent")
            else:
                connection.send(Heartbeat())

    def _give_up(self, visitor: _Visitor, sid: int) -> None:
        visitor.rows.discard(sid)
        self._backend.cancel(RowKey(visitor.incarnation, sid), "cancelled")

    def _done(self, visitor: _Visitor, sid: int, result: PrefillResult | None) -> None:
        if sid not in visitor.rows:
            return  # given up
        if result is None:
            visitor.rows.discard(sid)
            self._refuse(visitor, sid, "unservable", "the prompt was not computed")
        elif any(len(block) > MAX_BLOCK_BYTES for block in result.blocks):
            visitor.rows.discard(sid)
            self._refuse(visitor, sid, "unservable", "a block of KV is larger than a message may be")
        else:
            visitor.unsent_bytes += _size(result)
            visitor.answers.put_nowait((sid, result))

    async def _send_answers(self, visitor: _Visitor) -> None:
        """One after the other, as fast as they are read: half an answer is of no use to anybody."""
        while True:
            await self._send_answer(visitor, *await visitor.answers.get())

    async def _send_answer(self, visitor: _Visitor, sid: int, result: PrefillResult) -> None:
        for message in messages_of(sid, result):
            await visitor.connection.drained()
            if sid not in visitor.rows or not visitor.connection.send(message):
                break
        visitor.rows.discard(sid)
        visitor.unsent_bytes -= _size(result)

    def _refuse(self, visitor: _Visitor, sid: int, code: str, message: str) -> None:
        logger.info("prefill refused worker=%s sid=%d code=%s: %s", visitor.incarnation, sid, code, message)
        row = RowKey(visitor.incarnation, sid)
        visitor.connection.send(Refused(row=row, code=code, message=message))


def _prompt_only(submit: Submit) -> Submit:
    """What its output shall be like is the other worker's affair, and no reason to fail here."""
    return replace(
        submit, max_tokens=1, sampling=Sampling(), n=1, stop=[], stop_ids=[], echo=False, grammar=None
    )


def _size(result: PrefillResult) -> int:
    return sum(map(len, result.blocks))
