"""Token logs for tests: requests to log, followers that remember, a Valkey that can be killed and return."""

import asyncio
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid4

from devservices.valkey import ValkeyServer
from gateway.answer_parts import ChoiceEnd, Finished, Head, Row, Usage
from gateway.token_log.entries import Entry, Opened
from gateway.token_log.follow import Follow, Lost
from gateway.token_log.limits import LogLimits
from gateway.token_log.log import TokenLog
from gateway.token_log.writer import LogWriter
from tenants.data_keys import data_key_generate

QUICK = LogLimits(
    give_up_s=1.0,
    answer_timeout_s=0.5,
    heartbeat_s=0.2,
    owner_ttl_s=1.0,
    owner_check_s=0.1,
    follow_check_s=0.1,
    listener_ttl_s=0.4,
    opening_s=0.5,
    patience_s=1.5,
)


@dataclass
class Request:
    """One request of one tenant, as any gateway knows it."""

    tenant_id: UUID = field(default_factory=uuid4)
    request_id: UUID = field(default_factory=uuid4)
    data_key: bytes = field(default_factory=data_key_generate)

    def opened(self, deadline_s: float = 60.0) -> Opened:
        head = Head(
            request_id=str(self.request_id),
            created=1,
            model="tiny",
            digest="sha256:0",
            klass="interactive",
            prompt_tokens=(3,),
        )
        deadline_ms = int((time.time() + deadline_s) * 1000)
        return Opened(dialect="openai.chat", options=b"\x80", head=head, deadline_ms=deadline_ms)

    def write(self, log: TokenLog, attempt: int = 1, deadline_s: float = 60.0) -> LogWriter:
        return log.open(self.tenant_id, self.request_id, attempt, self.data_key, self.opened(deadline_s))

    def follow(self, log: TokenLog, attempt: int = 1, data_key: bytes = b"") -> "Reading":
        reading = Reading()
        reading.follow = log.follow(
            self.tenant_id,
            self.request_id,
            attempt,
            data_key or self.data_key,
            reading.take,
            reading.lost.append,
        )
        return reading

    async def find(self, log: TokenLog) -> Opened | None:
        return await log.find(self.tenant_id, self.request_id, self.data_key)

    @property
    def key(self) -> str:
        return f"sluice:log:{{{self.tenant_id}:{self.request_id}}}"


@dataclass
class Reading:
    """What a follower was told."""

    entries: list[Entry] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    pause_at: int = 0
    follow: Follow = field(init=False)

    def take(self, entry: Entry) -> None:
        self.entries.append(entry)
        if len(self.entries) == self.pause_at:
            self.follow.pause()

    @property
    def parts(self) -> list[Entry]:
        """Without the first entry."""
        return self.entries[1:]

    async def ended(self, seconds: float = 5.0) -> list[Entry]:
        await until(lambda: self.follow.is_closed, seconds)
        return self.parts


@asynccontextmanager
async def running(url: str, owner: str = "gateway-a", limits: LogLimits = QUICK) -> AsyncIterator[TokenLog]:
    """A gateway's token log, once Valkey answers."""
    log = TokenLog(url, owner, limits)
    task = asyncio.create_task(log.run())
    try:
        await until(lambda: log.is_ready)
        yield log
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - any condition, also another process's
            await asyncio.sleep(0.005)


def token(number: int) -> Row:
    return Row(0, 1, f" token{number}")


def end(tokens: int) -> Finished:
    return Finished([ChoiceEnd(0, "stop", tokens)], Usage(3, 0, tokens))


def nothing() -> None:
    """Nobody waits for this entry."""


class MortalValkey:
    """A durable Valkey on one port that can be killed, stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.server = ValkeyServer.prepare(folder, durable=True)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return self.server.url

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.server.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 10
        while not self.server.is_ready(self.process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
            self.process = None

    def close(self) -> None:
        self.kill()
        self.server.release()
