"""KV on its way between workers: whole or not at all, in bounded pieces, and never a reason to fail."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuworker import prefill_client
from gpuworker.engine.transfer import PrefillResult
from gpuworker.kv_transfer import MESSAGE_BYTES, Assembly, BadTransfer, messages_of
from gpuworker.prefill_client import PrefillClient
from gpuworker.wire.connection import Connection, listen
from gpuworker.wire.framing import encode
from gpuworker.wire.messages import (
    PROTOCOL_VERSION,
    AnyMessage,
    Cancel,
    Heartbeat,
    Hello,
    KvBlocks,
    Pause,
    Refusal,
    Refused,
    Resume,
    RowKey,
    Submit,
    Welcome,
)
from gpuworker.wire.prefix_secret import prefix_secret
from policy.prefix import BLOCK_TOKENS, prefix_next, prefix_root
from tests.worker.conftest import Stage
from tests.worker.support import SECRET, Waiter, hello_make, submit_make

ROW = RowKey("g", 7)
PROMPT = "p" * 100  # six full blocks


def result(blocks: int, size: int = 3) -> PrefillResult:
    keys = [bytes([index]) for index in range(blocks)]
    return PrefillResult(keys, [bytes([index]) * size for index in range(blocks)], 5)


# -- messages ----------------------------------------------------------------------------------------------


@given(blocks=st.integers(0, 40), size=st.sampled_from([1, MESSAGE_BYTES // 7, MESSAGE_BYTES + 1]))
def test_what_arrives_is_what_was_sent_in_messages_of_bounded_size(blocks: int, size: int) -> None:
    sent = result(blocks, 1)
    sent = PrefillResult(sent.keys, [bytes(size)] * blocks, 5)  # one object: forty of them would be 160 MiB
    assembly, got = Assembly(blocks), None
    for message in messages_of(9, sent):
        assert got is None, "nothing follows the last message"
        assert message.sid == 9
        assert sum(map(len, message.blocks)) <= MESSAGE_BYTES or len(message.blocks) == 1
        got = assembly.add(message)
    assert got == sent
    assert assembly.size_bytes == blocks * size


@pytest.mark.parametrize(
    "message",
    [
        KvBlocks(sid=1, keys=[b"a"], blocks=[], more=True),
        KvBlocks(sid=1, keys=[], blocks=[b"x"], more=False),
        KvBlocks(sid=1, keys=[], blocks=[], more=True),
        KvBlocks(sid=1, keys=[b"a", b"b"], blocks=[b"x", b"xx"], more=True),
        KvBlocks(sid=1, keys=[b"a"], blocks=[b"longer than the first one"], more=False),
        KvBlocks(sid=1, keys=[b"a"] * 6, blocks=[b"xyz"] * 6, more=True),
    ],
)
def test_what_is_no_part_of_the_prompts_kv_is_refused(message: KvBlocks) -> None:
    assembly = Assembly(max_blocks=6)
    assembly.add(KvBlocks(sid=1, keys=[b"0"], blocks=[b"000"], more=True))
    with pytest.raises(BadTransfer):
        assembly.add(message)
    assert assembly.size_bytes == 3


# -- the side that asks ------------------------------------------------------------------------------------


@dataclass
class PrefillEnd(Waiter):
    """Plays a prefill worker as the test says."""

    address: str
    digest: str = "d"
    greet: Callable[[Connection, Hello], None] | None = None
    submits: list[Submit] = field(default_factory=list)
    cancels: list[int] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)

    def __post_init__(self) -> None:
        Waiter.__init__(self)

    async def start(self) -> Self:
        self._server = await listen(self.address, self._received, lambda *_: None, self.connections.append)
        return self

    async def stop(self) -> None:
        self._server.close()
        for connection in self.connections:
            connection.abort("test over")
        await self._server.wait_closed()

    def send(self, message: AnyMessage) -> None:
        assert self.connections[-1].send(message)

    def _received(self, connection: Connection, message: AnyMessage) -> None:
        match message:
            case Hello() if self.greet is not None:
                self.greet(connection, message)
            case Hello():
                assert message.role == "worker"
                connection.send(self.welcome())
            case Submit():
                self.submits.append(message)
            case Cancel():
                self.cancels.append(message.sid)
        self.notify()

    def welcome(self) -> Welcome:
        return Welcome(version=PROTOCOL_VERSION, id="p", incarnation="p", digest=self.digest)

    async def asked(self, count: int = 1) -> Submit:
        await self.until(lambda: len(self.submits) >= count)
        return self.submits[count - 1]


@dataclass
class Asking(Waiter):
    """A client, and what it handed back."""

    folder: Path
    back: list[tuple[RowKey, Submit, PrefillResult | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        Waiter.__init__(self)
        hello = hello_make("worker", "w", digest="d")
        self.client = PrefillClient(hello, 16, self._ready)
        self.address = f"unix:{self.folder}/p.sock"

    def _ready(self, row: RowKey, submit: Submit, got: PrefillResult | None) -> None:
        self.back.append((row, submit, got))
        self.notify()

    def fetch(self, row: RowKey = ROW, prompt: str = PROMPT, **fields: object) -> None:
        self.client.fetch(row, submit_make(row.sid, prompt, **fields), self.address)

    async def got(self) -> PrefillResult | None:
        await self.until(lambda: self.back)
        (only,) = self.back
        assert self.client.rows == []
        assert self.client._held_bytes == 0
        assert only[0] == ROW
        return only[2]


@pytest.fixture
async def asking(folder: Path) -> AsyncIterator[Asking]:
    asking = Asking(folder)
    yield asking
    asking.client.close()
    await asyncio.sleep(0)


@pytest.fixture
async def end(asking: Asking) -> AsyncIterator[PrefillEnd]:
    end = await PrefillEnd(asking.address).start()
    yield end
    await end.stop()


def reply(end: PrefillEnd, whole: PrefillResult, request: Submit) -> None:
    for message in messages_of(request.sid, whole):
        end.send(message)


async def test_an_answer_is_handed_back_whole(asking: Asking, end: PrefillEnd) -> None:
    asking.fetch(tenant="a tenant", cache_salt="s")
    request = await end.asked()
    assert (request.prompt, request.tenant, request.cache_salt) == (
        PROMPT.encode("utf-32-le"),
        "a tenant",
        "s",
    )
    reply(end, result(6), request)
    assert await asking.got() == result(6)
    assert asking.back[0][1].sid == ROW.sid, "its own name again"
    assert end.cancels == []


async def test_one_connection_serves_many_prompts_in_any_order(asking: Asking, end: PrefillEnd) -> None:
    rows = [RowKey("g", sid) for sid in range(5)]
    for row in rows:
        asking.fetch(row)
    await end.asked(5)
    for request in reversed(end.submits):
        reply(end, result(request.sid % 6 + 1), request)
    await asking.until(lambda: len(asking.back) == 5)
    assert [row for row, _, _ in asking.back] == rows[::-1]
    assert len(end.connections) == 1


async def test_a_prompt_without_a_full_block_brings_nothing(asking: Asking, end: PrefillEnd) -> None:
    asking.fetch()
    reply(end, result(0), await end.asked())
    assert await asking.got() is None


async def test_nobody_listens(asking: Asking) -> None:
    asking.fetch()
    assert await asking.got() is None


async def test_an_address_that_is_none(asking: Asking) -> None:
    asking.address = "nonsense"
    asking.fetch()
    assert await asking.got() is None


async def test_other_weights(asking: Asking, end: PrefillEnd) -> None:
    end.digest = "other"
    asking.fetch()
    assert await asking.got() is None
    assert end.submits == []


async def test_it_refuses_the_greeting(asking: Asking, end: PrefillEnd) -> None:
    def refuse(connection: Connection, _: Hello) -> None:
        connection.send(Refusal(code="bad_secret", message="no"))
        connection.close()

    end.greet = refuse
    asking.fetch()
    assert await asking.got() is None


async def test_it_refuses_the_prompt(asking: Asking, end: PrefillEnd) -> None:
    asking.fetch()
    request = await end.asked()
    end.send(Refused(row=RowKey("w", request.sid), code="capacity", message="full"))
    assert await asking.got() is None


async def test_it_dies_between_two_messages(
    asking: Asking, end: PrefillEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_client, "AVOID_S", 0.0)
    asking.fetch()
    request = await end.asked()
    end.send(KvBlocks(sid=request.sid, keys=[b"a"], blocks=[b"xyz"], more=True))
    end.connections[-1].close()
    assert await asking.got() is None
    asking.back.clear()
    asking.fetch()
    reply(end, result(6), await end.asked(2))
    assert await asking.got() == result(6), "a new connection, no trace of the old"


async def test_it_dies_within_a_message(asking: Asking, end: PrefillEnd) -> None:
    asking.fetch()
    request = await end.asked()
    whole = encode(KvBlocks(sid=request.sid, keys=[b"a"], blocks=[bytes(5_000)], more=False))
    transport = end.connections[-1]._transport
    assert transport is not None
    transport.write(whole[:2_000])
    end.connections[-1].close()
    assert await asking.got() is None


async def test_more_than_the_prompt_has_is_not_taken(asking: Asking, end: PrefillEnd) -> None:
    asking.fetch()
    reply(end, result(7), await end.asked())
    assert await asking.got() is None


async def test_it_says_what_a_prefill_worker_does_not_say(asking: Asking, end: PrefillEnd) -> None:
    asking.fetch()
    await end.asked()
    end.send(Cancel(sid=1))
    assert await asking.got() is None


async def test_it_is_too_slow_then_the_rest_of_the_time_is_the_rows(asking: Asking, end: PrefillEnd) -> None:
    asking.fetch(deadline_ms=400)
    request = await end.asked()
    assert await asking.got() is None
    assert 100 <= asking.back[0][1].deadline_ms <= 210
    await end.until(lambda: end.cancels)
    assert end.cancels == [request.sid]


async def test_a_deadline_that_passed_leaves_none(asking: Asking, end: PrefillEnd) -> None:
    asking.fetch(deadline_ms=0)
    assert await asking.got() is None
    assert asking.back[0][1].deadline_ms == 0


async def test_a_row_that_is_given_up_is_not_handed_back(asking: Asking, end: PrefillEnd) -> None:
    asking.fetch()
    request = await end.asked()
    end.send(KvBlocks(sid=request.sid, keys=[b"a"], blocks=[b"xyz"], more=True))
    submit = asking.client.give_up(ROW)
    assert submit is not None
    assert submit.sid == ROW.sid
    assert asking.client.give_up(ROW) is None
    await end.until(lambda: end.cancels)
    reply(end, result(6), request)  # crossed the cancel
    other = RowKey("g", 8)
    asking.fetch(other)
    reply(end, result(2), await end.asked(2))
    await asking.until(lambda: asking.back)
    assert [(row, got) for row, _, got in asking.back] == [(other, result(2))]


async def test_answers_beyond_what_may_be_held_are_given_up(
    asking: Asking, end: PrefillEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_client, "MAX_HELD_BYTES", 4)
    asking.fetch()
    request = await end.asked()
    end.send(KvBlocks(sid=request.sid, keys=[b"a", b"b"], blocks=[b"xyz", b"xyz"], more=True))
    assert await asking.got() is None
    await end.until(lambda: end.cancels)


async def test_a_silent_one_is_given_up_and_one_that_beats_is_not(
    asking: Asking, end: PrefillEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_client, "SILENCE_S", 0.2)
    asking.fetch()
    await end.asked()
    for _ in range(8):
        end.send(Heartbeat())
        await asyncio.sleep(0.05)
        asking.client.tick()
    assert asking.back == []
    await asyncio.sleep(0.3)
    asking.client.tick()
    assert await asking.got() is None


@pytest.mark.parametrize("how", ["silent", "too slow", "bad", "other weights"])
async def test_one_that_failed_is_not_asked_for_a_while(
    asking: Asking, end: PrefillEnd, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(prefill_client, "AVOID_S", 0.5)
    monkeypatch.setattr(prefill_client, "MAX_WAIT_S", 0.2 if how == "too slow" else 30)
    monkeypatch.setattr(prefill_client, "SILENCE_S", 0.1 if how == "silent" else 30)
    end.digest = "other" if how == "other weights" else "d"
    asking.fetch()
    if how != "other weights":
        request = await end.asked()
    if how == "bad":
        reply(end, result(7), request)
    elif how == "silent":
        await asyncio.sleep(0.15)
        asking.client.tick()
    assert await asking.got() is None
    asking.back.clear()
    connections, submits = len(end.connections), len(end.submits)
    asking.fetch()
    assert len(asking.back) == 1, "at once"
    assert (len(end.connections), len(end.submits)) == (connections, submits)
    asking.back.clear()
    await asyncio.sleep(0.6)
    end.digest = "d"
    asking.fetch()
    reply(end, result(6), await end.asked(submits + 1))
    assert await asking.got() == result(6)


async def test_a_request_in_a_hurry_says_nothing_about_the_other_worker(
    asking: Asking, end: PrefillEnd
) -> None:
    asking.fetch(deadline_ms=200)
    await end.asked()
    assert await asking.got() is None
    asking.back.clear()
    asking.fetch()
    reply(end, result(6), await end.asked(2))
    assert await asking.got() == result(6)


async def test_an_address_that_cannot_be(asking: Asking) -> None:
    asking.address = "tcp://127.0.0.1:99999"
    asking.fetch()
    assert await asking.got() is None


async def test_closing_hands_nothing_back(asking: Asking, end: PrefillEnd) -> None:
    asking.fetch()
    await end.asked()
    asking.client.close()
    await asyncio.sleep(0.05)
    assert asking.back == []


# -- a whole worker, and an answer that is wrong ------------------------------------------------------------


def keys_of(prompt: str, digest: str) -> list[bytes]:
    key, keys = prefix_root(prefix_secret(SECRET), "a tenant", digest, "", "scripted"), []
    for first in range(0, len(prompt) // BLOCK_TOKENS * BLOCK_TOKENS, BLOCK_TOKENS):
        key = prefix_next(key, list(prompt.encode()[first : first + BLOCK_TOKENS]))
        keys.append(key)
    return keys


def kv_of(prompt: str) -> list[bytes]:
    """As the scripted backend keeps it."""
    whole = prompt.encode("utf-32-le")
    return [whole[first : first + 64] for first in range(0, len(whole) // 64 * 64, 64)]


@pytest.mark.parametrize(
    ("damage", "used"),
    [
        (lambda whole: whole, True),
        (lambda whole: PrefillResult(whole.keys, [block + b"x" for block in whole.blocks], 0), False),
        (lambda whole: PrefillResult(whole.keys, [b""] * len(whole.blocks), 0), False),
        (lambda whole: PrefillResult([b"another"] * len(whole.keys), whole.blocks, 0), False),
        (lambda whole: PrefillResult(whole.keys[::-1], whole.blocks[::-1], 0), False),
        (lambda whole: PrefillResult(whole.keys[1:], whole.blocks[1:], 0), False),
    ],
)
async def test_a_wrong_answer_spares_nothing_and_breaks_nothing(
    stage: Stage, asking: Asking, damage: Callable[[PrefillResult], PrefillResult], used: bool
) -> None:
    await stage.start("--step-ms", "30", "--target-itl-ms", "off")
    gateway = await stage.gateway()
    end = await PrefillEnd(asking.address, stage.digest).start()
    prompt = "0123456789abcde" * 100  # three steps of 512
    run = gateway.run(1, prompt, digest=stage.digest, max_tokens=1)
    before = (await stage.dispatcher.until_idle()).step
    stage.dispatcher.send(replace(run, prefill_from=end.address))
    reply(end, damage(PrefillResult(keys_of(prompt, stage.digest), kv_of(prompt), 0)), await end.asked())
    await gateway.until_ended(1)
    assert gateway.text(1) == "0"
    assert gateway.ends[1].cached_tokens == 0, "whoever computed it, it was computed for this request"
    steps = (await stage.dispatcher.until_idle()).step - before
    assert (steps < 3) == used
    await end.stop()


async def test_an_answer_that_finds_no_room_is_not_needed(stage: Stage, asking: Asking) -> None:
    await stage.start("--kv-blocks", "64", "--step-ms", "5")
    gateway = await stage.gateway()
    end = await PrefillEnd(asking.address, stage.digest).start()
    prompt = "0123456789abcde" * 50  # 46 full blocks
    stage.run(gateway, 1, "n" * 400, max_tokens=120)
    await gateway.until(lambda: gateway.text(1))
    run = gateway.run(2, prompt, digest=stage.digest, max_tokens=20)
    stage.dispatcher.send(replace(run, prefill_from=end.address))
    reply(end, PrefillResult(keys_of(prompt, stage.digest), kv_of(prompt), 0), await end.asked())
    await gateway.until_ended(1, 2)
    assert (gateway.text(1), gateway.text(2)) == ("n" * 120, ("0123456789abcde" * 2)[:20])
    await stage.dispatcher.until_idle()
    await end.stop()


async def test_a_row_that_is_paused_meanwhile_stays_so(stage: Stage, asking: Asking) -> None:
    await stage.start()
    gateway = await stage.gateway()
    end = await PrefillEnd(asking.address, stage.digest).start()
    prompt = "0123456789abcde" * 50
    run = gateway.run(1, prompt, digest=stage.digest, max_tokens=20)
    stage.dispatcher.send(replace(run, prefill_from=end.address))
    request = await end.asked()
    gateway.send(Pause(sid=1))
    stage.run(gateway, 2, "says that the pause was heard", max_tokens=3)
    await gateway.until_ended(2)
    reply(end, PrefillResult(keys_of(prompt, stage.digest), kv_of(prompt), 0), request)
    await asyncio.sleep(0.3)
    assert gateway.text(1) == ""
    gateway.send(Resume(sid=1))
    await gateway.until_ended(1)
    assert gateway.text(1) == "0123456789abcde01234"
    await end.stop()
