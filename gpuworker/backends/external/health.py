"""Whether an upstream is asked at all: it serves the model it is to serve, and it answers.

Looks at what it serves at the start, regularly, and whenever a connection broke, since another server
may have taken its place. After failures in a row nobody asks it until a probe, one token long, was answered.
"""

import asyncio
import logging
from collections.abc import Callable
from random import Random

from gpuworker.backends.external.answer import Dialect, UpstreamRequest
from gpuworker.backends.external.event_stream import BadStream
from gpuworker.backends.external.failures import Failure
from gpuworker.backends.external.http_client import HttpClient
from gpuworker.backends.external.http_connection import Exchange
from gpuworker.backends.external.settings import UpstreamSettings
from policy.circuit_breaker import CircuitBreaker

MAX_BODY_BYTES = 4 << 20
ANSWER_S = 5.0  # for the list of models
JITTER = 0.1  # of a pause, so that many workers do not probe at once

logger = logging.getLogger(__name__)


class ProbeFailed(Exception):
    """The upstream did not answer as it should; the message says how."""


class _Collected:
    """A sink that keeps the answer; done at its first bytes where that is enough."""

    def __init__(self, *, is_first_enough: bool) -> None:
        self.status = 0
        self.body = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_first_enough = is_first_enough

    def started(self, status: int) -> None:
        self.status = status

    def data(self, received: bytes) -> None:
        if len(self.body) < MAX_BODY_BYTES:
            self.body += received
        if self._is_first_enough and self.status == 200 and b"data:" in self.body:
            self._finish(None)

    def ended(self, failure: str) -> None:
        self._finish(ProbeFailed(failure) if failure else None)

    def _finish(self, problem: ProbeFailed | None) -> None:
        if self.done.done():
            return
        if problem is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(problem)


class Health:
    """`probe` is a request of one token. `on_change` is called when `is_ready` may have changed."""

    def __init__(
        self,
        settings: UpstreamSettings,
        client: HttpClient,
        dialect: Dialect,
        probe: UpstreamRequest,
        context_tokens: int,
        on_change: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._client = client
        self._dialect = dialect
        self._probe = probe
        self._context_tokens = context_tokens
        self._on_change = on_change
        self._breaker = CircuitBreaker()
        self._loop = asyncio.get_running_loop()
        self._random = Random()  # noqa: S311 - spreads probes
        self._is_verified = False
        self._suspect = asyncio.Event()
        self._complaint = ""
        self._breaker.trip(self._now_ms(), at_once=True)

    @property
    def is_ready(self) -> bool:
        return self._is_verified and self._breaker.is_closed

    def answered(self) -> None:
        self._breaker.succeeded()

    def failed(self, failure: Failure, *, is_conclusive: bool) -> None:
        """A request was not answered as it should be. `is_conclusive`: no more of them are needed to know."""
        if is_conclusive or failure.kind in ("misconfigured", "wrong_model"):
            self._breaker.trip(self._now_ms(), at_once=True)
        elif self._breaker.failed(self._now_ms()):
            logger.error("the upstream is given a pause: %s: %s", failure.kind, failure.message)
        if failure.kind != "silent":
            self._is_verified = False  # another server may answer next
        self._suspect.set()
        self._on_change()

    def suspect(self) -> None:
        """A kept connection was closed: look what is served there, and go on meanwhile."""
        self._suspect.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            pause_ms = self._breaker.probe_in_ms(self._now_ms())
            if pause_ms is None and self._is_verified:
                await self._wait(self._settings.check_s)
            elif pause_ms:
                await asyncio.sleep(pause_ms / 1000 * self._random.uniform(1, 1 + JITTER))
            self._suspect.clear()
            await self._look()
            self._on_change()

    async def _look(self) -> None:
        try:
            await self._identify()
            if not self._breaker.is_closed:
                await self._answer_once()
        except (ProbeFailed, BadStream) as error:
            if str(error) != self._complaint:
                logger.error("the upstream is not used: %s", error)
                self._complaint = str(error)
            self._is_verified = False
            self._breaker.trip(self._now_ms())
            self._breaker.probed(self._now_ms(), has_answered=False)
            return
        if not self._is_verified or not self._breaker.is_closed:
            logger.info("the upstream is used: it serves %s", self._settings.model)
        self._complaint, self._is_verified = "", True
        self._breaker.probed(self._now_ms(), has_answered=True)

    async def _identify(self) -> None:
        sink = _Collected(is_first_enough=False)
        await self._answer(sink, self._client.get(self._dialect.identity_path, sink), ANSWER_S)
        settings = self._settings
        problem = self._dialect.identity_problem(
            sink.body, settings.model, settings.revision, self._context_tokens
        )
        if problem:
            raise ProbeFailed(problem)

    async def _answer_once(self) -> None:
        sink = _Collected(is_first_enough=True)
        body = self._dialect.body(self._settings.model, self._probe)
        await self._answer(
            sink, self._client.post(self._dialect.path, body, sink), self._settings.first_token_s
        )

    async def _answer(self, sink: _Collected, exchange: Exchange, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s + self._settings.connect_s):
                await sink.done
        except TimeoutError:
            raise ProbeFailed(f"no answer within {timeout_s:g} s") from None
        finally:
            exchange.cancel()  # no effect on one that ended
        if sink.status != 200:
            raise ProbeFailed(f"HTTP {sink.status}")

    async def _wait(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._suspect.wait()
        except TimeoutError:
            return

    def _now_ms(self) -> float:
        return self._loop.time() * 1000
