"""The store as one gateway sees it: scripts with a short timeout, heartbeats, and whether it answers at all.

Once it is down, no request is made to wait for it: heartbeats alone find out when it is back.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis.exceptions import NoScriptError, RedisError, ResponseError

from gateway.quotas.addresses import addressed
from gateway.quotas.bounds import QuotaBounds
from gateway.quotas.scripts import BEAT, RESERVE, SETTLE, Script
from policy.store_state import State, StateChange, StoreState

_GATEWAYS = b"sluice:quota:{gateways}:live"
_BIRTH = b"sluice:quota:{gateways}:birth"

Arg = bytes | str | int

logger = logging.getLogger(__name__)


# How errors about the keys of one call begin; any other says that the store serves nobody.
_ABOUT_KEYS = ("WRONGTYPE", "user_script", "Error running script", "value is not", "hash value is not")


class StoreAway(Exception):
    """It did not answer in time, or is known not to."""


class StoreRefused(Exception):
    """It answers, but cannot do this call: keys are not what they should be. Others' calls are no worse."""


def now_ms() -> int:
    """Of the leases: monotonic."""
    return time.monotonic_ns() // 1_000_000


def unix_ms() -> int:
    """Of the periods of spend."""
    return time.time_ns() // 1_000_000


class QuotaStore:
    """`on_change` hears of every change of state, `on_return` that it answers again after any failure, and
    `on_loss` that it has lost its data."""

    def __init__(
        self,
        url: str,
        incarnation: str,
        bounds: QuotaBounds,
        on_change: Callable[[StateChange], None],
        on_return: Callable[[], None],
        on_loss: Callable[[], None],
    ) -> None:
        self._incarnation = incarnation
        self._bounds = bounds
        self._on_change = on_change
        self._on_return = on_return
        self._on_loss = on_loss
        self._addressed = addressed(url, bounds)
        self._connections = asyncio.Semaphore(bounds.connections)
        self._state = StoreState()
        self._birth: bytes | None = None
        self._learnt_at_ms = 0
        self._has_learnt = False
        self.gateways = 1

    @property
    def state(self) -> State:
        return self._state.state

    @property
    def is_down(self) -> bool:
        """Requests get the local share. One call that failed does not say so: it may be sent again."""
        return self.state is not State.OK

    @property
    def is_tight(self) -> bool:
        return self.state is State.TIGHT

    def serves(self, klass: str) -> bool:
        return self._state.serves(klass)

    async def run(self) -> None:
        """Until cancelled: heartbeats."""
        is_prepared = False
        while True:
            try:
                if not is_prepared:
                    await self._prepare()
                    is_prepared = True
                await self.beat()
            except StoreAway:
                is_prepared = False
                # A server that became a replica refuses: others are looked for.
                await self._addressed.client.connection_pool.disconnect(inuse_connections=False)
            if change := self._state.tick(now_ms()):
                self._on_change(change)
            await asyncio.sleep(self._bounds.probe_s if self._state.is_failing else self._bounds.beat_s)

    async def close(self) -> None:
        try:
            await self._within(
                self._addressed.client.zrem(_GATEWAYS, self._incarnation), self._bounds.connect_timeout_s
            )
        except (StoreAway, StoreRefused):
            logger.debug("quotas: the store was not told that this gateway ends")
        await self._addressed.close()

    async def call(self, script: Script, keys: Sequence[bytes], arguments: Sequence[Arg]) -> list[Any]:
        """Raises StoreAway: whether it was executed is not known. Raises StoreRefused."""
        if self.is_down:
            raise StoreAway("the store does not answer")
        return await self._run(script, keys, arguments)

    async def beat(self) -> None:
        """Raises StoreAway."""
        ttl_ms = int(self._bounds.gateway_ttl_s * 1000)
        arguments = (self._incarnation, ttl_ms, secrets.token_hex(8))
        try:
            gateways, birth, age_ms = await self._run(BEAT, (_GATEWAYS, _BIRTH), arguments)
        except StoreRefused as error:  # these keys are everybody's
            self._failed(now_ms(), error)
            raise StoreAway(str(error)) from error
        self.gateways = max(1, gateways)
        if birth != self._birth:
            self._learnt_at_ms = now_ms() - age_ms + int(self._bounds.learning_s * 1000)
            is_loss, self._birth = self._birth is not None, birth
            if is_loss:
                self._on_loss()

    def learning_ms(self) -> int:
        """Until every gateway has reported to this store what it spent."""
        return max(0, self._learnt_at_ms - now_ms())

    @property
    def is_starting(self) -> bool:
        """The store that was found at the start is new, and does not know yet what was spent. Not where there
        was none (then this gateway grants by itself), and not of one that loses its data later."""
        if self._birth is not None and not self.learning_ms():
            self._has_learnt = True
        return self._birth is not None and not self._has_learnt

    async def _prepare(self) -> None:
        """The store knows the scripts, and a connection is open, before a request waits for either.

        That it is back is for a heartbeat to say, which must be as quick as any answer. Raises StoreAway.
        """
        client: Any = self._addressed.client
        for script in (RESERVE, SETTLE, BEAT):
            try:
                await self._counted(client.script_load(script.text), self._bounds.connect_timeout_s)
            except StoreRefused as error:
                self._failed(now_ms(), error)
                raise StoreAway(str(error)) from error

    # -- calls --------------------------------------------------------------------------------------------

    async def _run(self, script: Script, keys: Sequence[bytes], arguments: Sequence[Arg]) -> list[Any]:
        async with self._connections:  # waiting for one of them is not the store's slowness
            started = now_ms()
            asking = self._evaluate(script, keys, arguments)
            reply: list[Any] = await self._counted(asking, self._bounds.answer_timeout_s)
        was_failing = self._state.is_failing
        if change := self._state.answered(started, now_ms()):
            self._on_change(change)
        if was_failing:
            self._on_return()
        return reply

    async def _counted(self, asking: Awaitable[Any], timeout_s: float) -> Any:
        """A failure counts. Raises StoreAway, StoreRefused."""
        asked_ms = now_ms()
        try:
            return await self._within(asking, timeout_s)
        except StoreAway as error:
            self._failed(asked_ms, error)
            raise

    def _failed(self, asked_ms: int, error: Exception) -> None:
        if not self._state.is_failing:
            logger.warning("quotas: a call to the store failed: %s", error)
        if change := self._state.failed(asked_ms, now_ms()):
            self._on_change(change)

    async def _evaluate(self, script: Script, keys: Sequence[bytes], arguments: Sequence[Arg]) -> list[Any]:
        client: Any = self._addressed.client
        try:
            reply = await client.evalsha(script.sha, len(keys), *keys, *arguments)
        except NoScriptError:
            reply = await client.eval(script.text, len(keys), *keys, *arguments)
        assert isinstance(reply, list)
        return reply

    async def _within(self, asking: Awaitable[Any], timeout_s: float) -> Any:
        """A process that was busy itself gives the store a second chance: its answer may be here unread."""
        task, started = asyncio.ensure_future(asking), time.monotonic()
        try:
            await asyncio.wait({task}, timeout=timeout_s)
            if not task.done() and time.monotonic() - started > 1.25 * timeout_s:
                await asyncio.wait({task}, timeout=timeout_s)
            if not task.done():
                raise StoreAway(f"no answer within {timeout_s * 1000:.0f} ms")
            return task.result()
        except ResponseError as error:
            is_about_keys = str(error).removeprefix("ERR ").startswith(_ABOUT_KEYS)
            raise (StoreRefused if is_about_keys else StoreAway)(repr(error)) from error
        except (RedisError, OSError) as error:
            raise StoreAway(repr(error)) from error
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
            elif not task.cancelled():
                task.exception()
