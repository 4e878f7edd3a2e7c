"""The side of a worker that decodes: asks a prefill worker for the KV of a prompt.

Whatever goes wrong, the row is handed back without KV and its prompt is computed here: a request never fails
because of a transfer, it only waits for one, for half of the time it has left at most.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from gpuworker.engine.transfer import PrefillResult
from gpuworker.kv_transfer import Assembly, BadTransfer
from gpuworker.wire.connection import Connection, connect
from gpuworker.wire.messages import (
    AnyMessage,
    Cancel,
    Heartbeat,
    Hello,
    KvBlocks,
    Refusal,
    Refused,
    RowKey,
    Submit,
    Welcome,
)
from gpuworker.wire.tls import WireTls

CONNECT_TIMEOUT_S = 2.0
SILENCE_S = 3.0
MAX_WAIT_S = 30.0
AVOID_S = 5.0  # one that failed would make every prompt wait anew; prompts are computed here meanwhile
MAX_HELD_BYTES = 512 << 20  # of answers that are not complete
TOKEN_BYTES = 4

logger = logging.getLogger(__name__)

OnReady = Callable[[RowKey, Submit, PrefillResult | None], None]


@dataclass(slots=True, eq=False)
class _Fetch:
    """One prompt that is computed elsewhere. `number` names it on the connection to `peer`."""

    row: RowKey
    number: int
    submit: Submit
    peer: "_Peer"
    deadline: float  # of the request, on the loop's clock
    assembly: Assembly
    timer: asyncio.TimerHandle


@dataclass(slots=True, eq=False)
class _Peer:
    address: str
    connection: Connection | None = None
    is_ready: bool = False
    fetches: dict[int, _Fetch] = field(default_factory=dict)
    opening: "asyncio.Task[None] | None" = None

    def ask(self, fetch: _Fetch) -> None:
        if self.is_ready and self.connection is not None:
            self.connection.send(replace(fetch.submit, sid=fetch.number))


class PrefillClient:
    """`on_ready` is called once for each row given to `fetch`, unless `give_up` took it back.

    The Submit it is given has what is left of the deadline. Connections are opened when they are first needed
    and kept until they break.
    """

    def __init__(self, hello: Hello, block_size: int, on_ready: OnReady, tls: WireTls | None = None) -> None:
        self._hello = hello
        self._tls = tls
        self._block_size = block_size
        self._on_ready = on_ready
        self._peers: dict[str, _Peer] = {}
        self._fetches: dict[RowKey, _Fetch] = {}
        self._avoided: dict[str, float] = {}  # addresses that failed, until when on the loop's clock
        self._last_number = 0
        self._held_bytes = 0

    @property
    def rows(self) -> list[RowKey]:
        """Those that wait."""
        return list(self._fetches)

    def fetch(self, row: RowKey, submit: Submit, address: str) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._avoided.get(address, 0.0):
            self._on_ready(row, submit, None)
            return
        self._last_number += 1
        left_s = max(submit.deadline_ms, 0) / 1000
        patience_s = min(left_s / 2, MAX_WAIT_S)
        peer = self._peers.get(address) or self._peer_open(address)
        fetch = _Fetch(
            row=row,
            number=self._last_number,
            submit=submit,
            peer=peer,
            deadline=loop.time() + left_s,
            assembly=Assembly(len(submit.prompt) // TOKEN_BYTES // self._block_size),
            timer=loop.call_later(patience_s, self._too_slow, row, patience_s),
        )
        self._fetches[row] = peer.fetches[fetch.number] = fetch
        peer.ask(fetch)

    def give_up(self, row: RowKey) -> Submit | None:
        """The row's request, if it waited; the other worker is told."""
        fetch = self._fetches.get(row)
        return self._end(fetch) if fetch is not None else None

    def tick(self) -> None:
        now = asyncio.get_running_loop().time()
        self._avoided = {address: until for address, until in self._avoided.items() if until > now}
        for peer in list(self._peers.values()):
            if peer.connection is None:
                continue
            if now - peer.connection.last_received > SILENCE_S:
                peer.connection.abort("the prefill worker is silent")
            else:
                peer.connection.send(Heartbeat())

    def close(self) -> None:
        """Rows that wait are not handed back."""
        for fetch in list(self._fetches.values()):
            self._end(fetch)
        for peer in self._peers.values():
            if peer.opening is not None:
                peer.opening.cancel()
            if peer.connection is not None:
                peer.connection.close("worker stops")

    # -- connections --------------------------------------------------------------------------------------

    def _peer_open(self, address: str) -> _Peer:
        peer = self._peers[address] = _Peer(address)
        peer.opening = asyncio.create_task(self._connect(peer))
        return peer

    async def _connect(self, peer: _Peer) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                peer.connection = await connect(
                    peer.address,
                    lambda _, message: self._received(peer, message),
                    lambda _, cause: self._lost(peer, cause),
                    tls=self._tls,
                    role="worker",
                )
        except (OSError, ValueError) as error:  # TimeoutError is an OSError; ValueError: no address
            self._lost(peer, f"cannot connect: {error}")
        else:
            peer.connection.send(self._hello)

    def _lost(self, peer: _Peer, cause: str) -> None:
        logger.warning("prefill worker %s: %s, rows=%d", peer.address, cause, len(peer.fetches))
        if self._peers.get(peer.address) is peer:
            del self._peers[peer.address]
        peer.is_ready = False
        self._avoid(peer)
        for fetch in list(peer.fetches.values()):
            self._finish(fetch, None)

    def _received(self, peer: _Peer, message: AnyMessage) -> None:
        match message:
            case Welcome():
                self._welcomed(peer, message)
            case KvBlocks():
                if fetch := peer.fetches.get(message.sid):
                    self._assemble(fetch, message)
            case Refused():
                if fetch := peer.fetches.get(message.row.sid):
                    logger.info("prefill worker %s refused: %s", peer.address, message.message)
                    self._finish(fetch, None)
            case Heartbeat():
                pass
            case Refusal():
                logger.error("prefill worker %s refuses this one: %s", peer.address, message.message)
            case _:
                self._abort(peer, f"unexpected {type(message).__name__}")

    def _welcomed(self, peer: _Peer, welcome: Welcome) -> None:
        if welcome.digest != self._hello.digest:
            self._abort(peer, f"holds other weights: {welcome.digest}")
            return
        peer.is_ready = True
        for fetch in peer.fetches.values():
            peer.ask(fetch)

    def _avoid(self, peer: _Peer) -> None:
        self._avoided[peer.address] = asyncio.get_running_loop().time() + AVOID_S

    def _abort(self, peer: _Peer, cause: str) -> None:
        if peer.connection is not None:
            peer.connection.abort(cause)

    # -- rows ---------------------------------------------------------------------------------------------

    def _assemble(self, fetch: _Fetch, message: KvBlocks) -> None:
        before = fetch.assembly.size_bytes
        try:
            result = fetch.assembly.add(message)
        except BadTransfer as error:
            logger.error("prefill worker %s: bad transfer: %s", fetch.peer.address, error)
            self._avoid(fetch.peer)
            self._finish(fetch, None)
            return
        self._held_bytes += fetch.assembly.size_bytes - before
        if result is not None:
            fetch.peer.fetches.pop(fetch.number, None)  # answered: nothing to cancel
            self._finish(fetch, result)
        elif self._held_bytes > MAX_HELD_BYTES:
            logger.warning("prefill: too many answers at once, computing one here")
            self._finish(fetch, None)

    def _too_slow(self, row: RowKey, waited_s: float) -> None:
        fetch = self._fetches[row]
        logger.warning("prefill worker %s is too slow: waited %.1f s", fetch.peer.address, waited_s)
        if waited_s == MAX_WAIT_S:  # less, and it may be the request that is in a hurry
            self._avoid(fetch.peer)
        self._finish(fetch, None)

    def _finish(self, fetch: _Fetch, result: PrefillResult | None) -> None:
        submit = self._end(fetch)
        self._on_ready(fetch.row, submit, result if result is not None and result.keys else None)

    def _end(self, fetch: _Fetch) -> Submit:
        del self._fetches[fetch.row]
        fetch.timer.cancel()
        self._held_bytes -= fetch.assembly.size_bytes
        peer = fetch.peer
        if peer.fetches.pop(fetch.number, None) and peer.is_ready and peer.connection is not None:
            peer.connection.send(Cancel(sid=fetch.number))
        left_s = fetch.deadline - asyncio.get_running_loop().time()
        return replace(fetch.submit, deadline_ms=max(0, round(left_s * 1000)))
