"""Connections between simulated processes: delayed, in order, cut for a while, and gone with their process.

Between two processes that are cut from each other bytes wait, as TCP's do, and connecting takes for ever. A
process that is killed is heard of at once, or never: then its machine went with it.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from tests.dispatch.fence.virtual_loop import VirtualLoop

LATENCY_S = (0.0002, 0.004)
SLOW_S = 0.08  # now and then
FOR_EVER_S = 3_600.0


class Process:
    """Its tasks and callbacks run in its `context`, so the network knows who connects."""

    def __init__(self, network: "Network", name: str) -> None:
        self.name = name
        self.is_alive = True
        self.transports: dict[Transport, None] = {}  # in order, so that a seed fixes everything
        self.tasks: list[asyncio.Task[Any]] = []
        self.context = contextvars.copy_context()
        self.context.run(CURRENT.set, self)
        self._network = network
        network.processes.append(self)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        asyncio.get_running_loop().create_task(work, context=self.context)

    def kill(self, *, is_heard: bool = True) -> None:
        """As `kill -9`; not heard: as by a power cut."""
        self.is_alive = False
        for address in [a for a, listener in self._network.listeners.items() if listener.process is self]:
            del self._network.listeners[address]
        for transport in list(self.transports):
            transport.vanish(tell=is_heard)
        for task in self.tasks:
            task.cancel()


CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def task_make(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, Any],
    *,
    context: contextvars.Context | None = None,
) -> asyncio.Task[Any]:
    """A task of the process in whose context it is made."""
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
    process = CURRENT.get() if context is None else context.get(CURRENT)
    if process is not None:
        process.tasks.append(task)
    return task


class Transport(asyncio.Transport):
    """One end. What is written is read by the `other` end's protocol."""

    def __init__(self, network: "Network", process: Process, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._network = network
        self.process = process
        self.protocol = protocol
        self.other: Transport = self
        self._loop = network.loop
        self._is_closing = False  # nothing more is written
        self._is_gone = False  # nor read
        self._inbox: deque[tuple[float, bytes | None]] = deque()  # when it arrives; None: the end
        process.transports[self] = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing:
            for part in self._network.carried(self, bytes(data)):
                self.other.arrive(part)

    def close(self) -> None:
        self._end(after_what_was_sent=True)

    def abort(self) -> None:
        self._end(after_what_was_sent=False)

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def vanish(self, *, tell: bool) -> None:
        """Its process is dead."""
        self._is_closing = self._is_gone = True
        self.process.transports.pop(self, None)
        if tell:
            self.other.arrive(None)

    def arrive(self, data: bytes | None) -> None:
        if self._is_gone:
            return
        due = self._loop.now + self._network.latency_s()
        if self._inbox:
            due = max(due, self._inbox[-1][0])
        self._inbox.append((due, data))
        if len(self._inbox) == 1:
            self._loop.call_at(due, self._deliver, context=self.process.context)

    def deliver_soon(self) -> None:
        """What waited for a cut to end."""
        self._loop.call_soon(self._deliver, context=self.process.context)

    def _deliver(self) -> None:
        loop, inbox = self._loop, self._inbox
        while inbox and not self._is_gone:
            due = max(inbox[0][0], self._network.open_at(self.process, self.other.process))
            if due > loop.now:
                loop.call_at(due, self._deliver, context=self.process.context)
                return
            _, data = inbox.popleft()
            if data is None:
                self._lost()
            else:
                self.protocol.data_received(data)
        inbox.clear()

    def _end(self, *, after_what_was_sent: bool) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if not after_what_was_sent:
            self.other.forget_some()
        self.other.arrive(None)
        self._loop.call_soon(self._lost, context=self.process.context)

    def forget_some(self) -> None:
        """The other end aborted: of what is under way, only what came first arrives."""
        kept = self._network.random.randint(0, len(self._inbox))
        first = list(self._inbox)[: max(kept, 1)] if self._inbox else []
        self._inbox.clear()
        self._inbox.extend(first)

    def _lost(self) -> None:
        if not self._is_gone:
            self._is_closing = self._is_gone = True
            self.process.transports.pop(self, None)
            self.protocol.connection_lost(None)


class Listener(asyncio.AbstractServer):
    def __init__(self, network: "Network", process: Process, factory: Callable[[], asyncio.Protocol]) -> None:
        self.process = process
        self.factory = factory
        self._network = network

    def get_loop(self) -> VirtualLoop:
        return self._network.loop

    def is_serving(self) -> bool:
        return self in self._network.listeners.values()

    async def start_serving(self) -> None: ...

    async def serve_forever(self) -> None:
        raise AssertionError("nobody asks for it")

    async def wait_closed(self) -> None: ...

    def close(self) -> None:
        for address, listener in list(self._network.listeners.items()):
            if listener is self:
                del self._network.listeners[address]


class Network:
    """`tap` sees every message that is sent, and says what arrives instead."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self.loop = loop
        loop.set_task_factory(task_make)  # type: ignore[arg-type]  # the stub knows no keyword for the context
        self.random = random
        self.listeners: dict[str, Listener] = {}
        self.processes: list[Process] = []
        self.tap: Callable[[Process, Process, bytes], list[bytes]] = lambda sender, receiver, data: [data]
        self._cut_until: dict[frozenset[Process], float] = {}

    def latency_s(self) -> float:
        return SLOW_S if self.random.random() < 0.03 else self.random.uniform(*LATENCY_S)

    def carried(self, sender: Transport, data: bytes) -> list[bytes]:
        return self.tap(sender.process, sender.other.process, data)

    def cut(self, one: Process, other: Process, seconds: float) -> None:
        pair = frozenset((one, other))
        self._cut_until[pair] = max(self._cut_until.get(pair, 0.0), self.loop.now + seconds)

    def reset(self, one: Process, other: Process) -> None:
        """Their connections break."""
        for transport in [t for t in one.transports if t.other.process is other]:
            transport.abort()

    def heal(self) -> None:
        self._cut_until.clear()
        for process in self.processes:
            for transport in process.transports:
                transport.deliver_soon()

    def open_at(self, one: Process, other: Process) -> float:
        return self._cut_until.get(frozenset((one, other)), 0.0) if self._cut_until else 0.0

    async def connect(self, factory: Callable[[], asyncio.Protocol], address: str) -> asyncio.Protocol:
        here = CURRENT.get()
        assert here is not None, "only processes connect"
        await asyncio.sleep(self.latency_s())
        listener = self.listeners.get(address)
        if listener is None:
            raise ConnectionRefusedError(address)
        if self.open_at(here, listener.process) > self.loop.now:
            await asyncio.sleep(FOR_EVER_S)
        protocol, accepted = factory(), listener.process.context.run(listener.factory)
        near, far = Transport(self, here, protocol), Transport(self, listener.process, accepted)
        near.other, far.other = far, near
        listener.process.context.run(accepted.connection_made, far)
        protocol.connection_made(near)
        return protocol

    def listen(self, factory: Callable[[], asyncio.Protocol], address: str) -> asyncio.AbstractServer:
        if address in self.listeners:
            raise OSError(f"{address} is taken")
        here = CURRENT.get()
        assert here is not None, "only processes listen"
        self.listeners[address] = listener = Listener(self, here, factory)
        return listener
