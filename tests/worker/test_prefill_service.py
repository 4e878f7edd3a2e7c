"""A prefill worker's answers are large: they wait for their reader, and for nobody who is gone."""

import asyncio
import gc
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuworker import prefill_service
from gpuworker.backends.engine_backend import EngineBackend
from gpuworker.engine.engine import CacheOptions, Engine
from gpuworker.engine.scripted_runner import ScriptedRunner
from gpuworker.engine.transfer import PrefillResult
from gpuworker.kv_transfer import MESSAGE_BYTES, Assembly
from gpuworker.prefill_service import PrefillService
from gpuworker.wire.connection import Connection, connect, listen
from gpuworker.wire.messages import (
    PROTOCOL_VERSION,
    AnyMessage,
    Cancel,
    Heartbeat,
    Hello,
    KvBlocks,
    Refused,
    Sampling,
    Submit,
    Welcome,
)
from tests.engine.support import tokenizer_file
from tests.worker.support import TIMEOUT_S, Waiter, hello_make, submit_make
from tests.worker.test_engine_backend import Steps

BLOCK_BYTES = 1 << 20
PROMPT = "a prompt of many blocks, each of them large. " * 10  # 28 full blocks


class LargeBlocks(ScriptedRunner):
    """Whose KV takes a MiB a block."""

    def read_blocks(self, blocks: list[int]) -> list[bytes]:
        return [content.ljust(BLOCK_BYTES, b"\0") for content in super().read_blocks(blocks)]


@dataclass
class Asker(Waiter):
    """A worker that asks; reads only while `reads`."""

    name: str
    got: dict[int, PrefillResult] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    closed: str = ""

    def __post_init__(self) -> None:
        Waiter.__init__(self)
        self._assemblies: dict[int, Assembly] = {}

    async def join(self, address: str) -> None:
        self.connection = await connect(address, self._received, self._closed)
        self.connection.send(hello_make("worker", self.name))

    async def leave(self) -> None:
        self.connection.abort("test over")
        await self.until(lambda: self.closed)

    def ask(self, sid: int, prompt: str = PROMPT, **fields: object) -> None:
        assert self.connection.send(submit_make(sid, prompt, **fields))

    def _received(self, connection: Connection, message: AnyMessage) -> None:
        match message:
            case KvBlocks(sid=sid):
                if whole := self._assemblies.setdefault(sid, Assembly(1_000)).add(message):
                    self.got[sid] = whole
            case Refused(row=row, code=code):
                self.refused[row.sid] = code
        self.notify()

    def _closed(self, connection: Connection, cause: str) -> None:
        self.closed = cause
        self.notify()

    def read(self, reads: bool) -> None:
        transport: Any = self.connection._transport
        (transport.resume_reading if reads else transport.pause_reading)()


@dataclass
class Serving:
    """A service on a socket, with a real backend."""

    backend: EngineBackend
    service: PrefillService
    steps: Steps
    address: str
    connections: dict[str, Connection] = field(default_factory=dict)
    askers: list[Asker] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)

    async def asker(self, name: str) -> Asker:
        self.askers.append(Asker(name))
        await self.askers[-1].join(self.address)
        return self.askers[-1]

    def received(self, connection: Connection, message: AnyMessage) -> None:
        match message:
            case Hello():
                self.connections[message.incarnation] = connection
                connection.send(Welcome(version=PROTOCOL_VERSION, id="p", incarnation="p"))
                self.service.joined(message.incarnation, connection)
            case Submit():
                self.service.submit(connection, message)
            case Cancel():
                self.service.cancel(connection, message.sid)

    async def until_idle(self) -> None:
        """No block is held and nothing waits to be sent."""

        def is_idle() -> bool:
            stats = self.steps.steps[-1].stats
            held = stats.running + stats.waiting + stats.blocks - stats.free_blocks
            return held + self.service.rows == 0

        async with asyncio.timeout(TIMEOUT_S):
            while not is_idle():  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest.fixture
async def serving(folder: Path) -> AsyncIterator[Serving]:
    engine = Engine(
        LargeBlocks(vocab_size=257, step_ms=5),
        tokenizer_file(folder),
        blocks=256,
        max_rows=8,
        max_context_tokens=2_048,
        pacer=None,
        eos_ids=frozenset({256}),
        cache=CacheOptions(secret=b"a secret", kv_dtype="large"),
    )
    backend, steps = EngineBackend(engine, max_rows=8), Steps()
    begun: list[str] = []
    await backend.start(steps.stepped, steps.died)
    service = PrefillService(backend, lambda _: None, lambda submit: begun.append(submit.request_id))
    serving = Serving(backend, service, steps, f"unix:{folder}/p.sock", begun=begun)
    server = await listen(serving.address, serving.received, lambda c, _: service.left(c))
    yield serving
    for asker in serving.askers:
        await asker.leave()
    server.close()
    await server.wait_closed()
    await backend.stop()


async def test_the_prompts_blocks_come_under_their_names(serving: Serving) -> None:
    asker = await serving.asker("a")
    asker.ask(1)
    asker.ask(2, PROMPT[:100] + "x" * 30)
    await asker.until(lambda: len(asker.got) == 2)
    first, second = asker.got[1], asker.got[2]
    assert len(first.keys) == len(first.blocks) == len(PROMPT) // 16
    assert first.keys[:6] == second.keys[:6], "a common beginning of one tenant"
    assert first.keys[6] != second.keys[6]
    assert first.blocks[3][:64] == PROMPT[48:64].encode("utf-32-le")
    assert serving.begun == ["request-1", "request-2"]
    await serving.until_idle()
    assert not any(step.output.gateways or step.output.checkpoints for step in serving.steps.steps), (
        "no usage"
    )


async def test_an_answer_waits_for_a_slow_reader_and_others_do_not(serving: Serving) -> None:
    slow, quick = await serving.asker("slow"), await serving.asker("quick")
    slow.ask(1)
    await slow.until(lambda: slow.got)
    slow.read(False)
    slow.ask(2, "2" + PROMPT)
    slow.ask(3, "3" + PROMPT)
    quick.ask(1, "4" + PROMPT)
    await quick.until(lambda: quick.got)
    assert serving.connections["slow"].outbox_bytes < 2 * MESSAGE_BYTES, "of 56 MiB"
    assert serving.service.rows == 2
    slow.read(True)
    await slow.until(lambda: len(slow.got) == 3)
    await serving.until_idle()


async def test_an_answer_given_up_half_way_is_not_sent_on(serving: Serving) -> None:
    asker = await serving.asker("a")
    asker.ask(1)
    await asker.until(lambda: asker.got)
    asker.read(False)
    asker.ask(2, "2" + PROMPT)
    await asyncio.sleep(0.2)
    asker.connection.send(Cancel(sid=2))
    await asyncio.sleep(0.05)
    asker.read(True)
    asker.ask(3, "3" + PROMPT)
    await asker.until(lambda: 3 in asker.got)
    assert 2 not in asker.got
    assert serving.service.rows == 0


async def test_too_much_that_nobody_reads_ends_new_prompts_not_memory(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_service, "MAX_UNSENT_BYTES", 20 << 20)
    slow, other = await serving.asker("slow"), await serving.asker("other")
    slow.ask(1)
    await slow.until(lambda: slow.got)
    slow.read(False)
    slow.ask(2, "2" + PROMPT)
    await serving.steps.until(lambda: sum(step.output.exports != [] for step in serving.steps.steps) == 2)
    other.ask(1)
    await other.until(lambda: other.refused)
    assert other.refused == {1: "capacity"}
    slow.read(True)
    await slow.until(lambda: 2 in slow.got)
    other.ask(2)
    await other.until(lambda: 2 in other.got)


async def test_prompts_of_a_worker_that_left_are_dropped(serving: Serving) -> None:
    asker = await serving.asker("a")
    for sid in range(6):
        asker.ask(sid, f"{sid}" + PROMPT * 3)
    await serving.steps.until(lambda: serving.service.rows == 6 and serving.steps.steps)
    asker.connection.abort("gone")
    await serving.until_idle()
    answers = [answer for step in serving.steps.steps for _, answer in step.output.exports]
    assert None in answers, "it stopped before the end"


async def test_a_prompt_asked_twice_is_computed_once_and_a_bad_one_is_refused(
    serving: Serving,
) -> None:
    asker = await serving.asker("a")
    asker.ask(1)
    asker.ask(1)
    asker.ask(2, "")
    asker.connection.send(Cancel(sid=99))
    await asker.until(lambda: asker.got and asker.refused)
    assert serving.begun == ["request-1", "request-2"]
    assert asker.refused == {2: "unservable"}


async def test_a_worker_that_says_nothing_is_given_up(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_service, "SILENCE_S", 0.2)
    asker = await serving.asker("a")
    asker.ask(1)
    await asker.until(lambda: asker.got)
    for _ in range(6):
        asker.connection.send(Heartbeat())
        await asyncio.sleep(0.05)
        serving.service.tick()
    assert not asker.closed
    await asyncio.sleep(0.3)
    serving.service.tick()
    await asker.until(lambda: asker.closed)


def _blocks_in_memory() -> int:
    gc.collect()
    return sum(
        type(each) is PrefillResult and len(each.blocks) == len(PROMPT) // 16 for each in gc.get_objects()
    )


async def test_an_answer_that_was_sent_is_not_kept(serving: Serving) -> None:
    asker = await serving.asker("a")
    asker.ask(1)
    await asker.until(lambda: asker.got)
    await serving.until_idle()
    asker.got.clear()
    asker._assemblies.clear()
    serving.steps.steps.clear()
    await asyncio.sleep(0.05)
    assert _blocks_in_memory() == 0, "28 MiB of it, until the next one comes"


async def test_what_the_output_shall_be_like_is_no_reason_to_fail(serving: Serving) -> None:
    asker = await serving.asker("a")
    asker.ask(1, sampling=Sampling(prompt_logprobs=3, top_p=7.0), n=5, stop_ids=[99_999], max_tokens=-1)
    await asker.until(lambda: asker.got or asker.refused)
    assert 1 in asker.got
    assert not any(step.output.gateways for step in serving.steps.steps), "nobody there reads logprobs"


async def test_prompts_given_up_are_refused_at_once(serving: Serving) -> None:
    asker = await serving.asker("a")
    asker.ask(1)
    await asker.until(lambda: asker.got)
    asker.read(False)
    asker.ask(2, "2" + PROMPT)
    for sid in range(3, 6):
        asker.ask(sid, f"{sid}" + PROMPT * 3)
    await serving.steps.until(lambda: serving.service.rows == 4 and len(serving.steps.steps) > 3)
    serving.service.give_up("the worker stops")
    assert serving.service.rows == 0
    asker.read(True)
    await asker.until(lambda: len(asker.refused) == 4)
    assert set(asker.refused.values()) == {"draining"}
    await serving.until_idle()
