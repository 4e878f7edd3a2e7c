"""Keeps an answer that may have to be sent again: each part is in the token log before its client gets it.

Of a request with an idempotency key the whole answer is stored at the end, sealed with the tenant's key.
"""

import asyncio
import zlib
from collections.abc import Callable
from functools import partial
from uuid import UUID

from billing.idempotency import Claim, IdempotencyStore
from gateway.answer_parts import Finished, PromptRow, Row, Sink, Usage
from gateway.answers.packed_entries import PackedEntries
from gateway.errors import ApiError
from gateway.token_log.entries import Entry, Failed, Opened, entries_of
from gateway.token_log.writer import LogWriter
from tenants.contracts import KeyGrant
from tenants.data_keys import open_, seal

_CONTEXT = b"stored answer "
_MAX_STORED_BYTES = 64 << 20  # of a stored answer, unpacked

StoredAnswer = tuple[Opened, list[Entry]]


class Recorder:
    """A sink before another one, of one attempt. `claim` is None where no key came with the request."""

    def __init__(
        self,
        *,
        opened: Opened,
        grant: KeyGrant,
        writer: LogWriter | None,
        store: IdempotencyStore,
        claim: Claim | None,
        sink: Sink,
        max_stored_bytes: int,
    ) -> None:
        self._request_id = opened.head.request_id
        self._grant = grant
        self._writer = writer
        self._store = store
        self._claim = claim
        self._sink = sink
        self._keeps = claim is not None and writer is not None
        self._packed = PackedEntries(max_stored_bytes)
        if self._keeps:
            self._packed.add(opened)

    @property
    def is_followed(self) -> bool:
        """Others may read it, so it may outlive its client."""
        return self._writer is not None and not self._writer.lost

    def abandon(self) -> None:
        """Nothing was submitted."""
        if self._writer is not None:
            self._writer.give_up("abandoned")

    def row(self, row: Row) -> None:
        self._pass(row, partial(self._sink.row, row))

    def prompt_row(self, row: PromptRow) -> None:
        self._pass(row, partial(self._sink.prompt_row, row))

    def continued(self, number: int) -> None:
        """Said to its own client; of those who read it later nobody waited."""
        self._sink.continued(number)

    def finished(self, finished: Finished) -> None:
        self._sink.finished(finished)

    def failed(self, error: ApiError) -> None:
        self._sink.failed(error)

    async def log(self, outcome: Finished | ApiError) -> None:
        """For those who follow it, before its own client is told. Bounded by the writer."""
        if self._writer is not None:
            is_logged = asyncio.Event()
            self._writer.append(_entry(outcome), is_logged.set)
            await is_logged.wait()
            await self._writer.close()

    async def store(self, outcome: Finished | ApiError, usage: Usage, *, is_final: bool) -> bool:
        """False: another gateway has taken the key over, so this is not its answer any more.

        `is_final` False: a request that repeats the key runs it again. Raises StoreUnavailable.
        """
        if self._claim is None:
            return True
        if not is_final:
            return await self._store.fail(self._grant.tenant_id, self._claim)
        return await self._store.finish(
            self._grant.tenant_id,
            self._claim,
            status=200 if isinstance(outcome, Finished) else outcome.status,
            answer=self._sealed(_entry(outcome)),
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
        )

    def _pass(self, entry: Entry, release: Callable[[], None]) -> None:
        if self._keeps:
            self._packed.add(entry)
        if self._writer is None:
            release()
        else:
            self._writer.append(entry, release)

    def _sealed(self, last: Entry) -> bytes | None:
        if not self._keeps:
            return None
        packed = self._packed.ending_with(last)
        if packed is None:
            return None
        return seal(self._grant.data_key, zlib.compress(packed, 1), _context(self._request_id))


def answer_open(grant: KeyGrant, request_id: UUID, sealed: bytes) -> StoredAnswer:
    """Raises ValueError when it is not what was stored for this request."""
    packed = open_(grant.data_key, sealed, _context(str(request_id)))
    try:
        unpacked = zlib.decompressobj().decompress(packed, _MAX_STORED_BYTES)
    except zlib.error as error:
        raise ValueError("it cannot be unpacked") from error
    opened, *entries = entries_of(unpacked)
    if not isinstance(opened, Opened):
        raise ValueError("it does not begin as an answer does")
    return opened, entries


def _entry(outcome: Finished | ApiError) -> Entry:
    if isinstance(outcome, Finished):
        return outcome
    if outcome.code == "invalid_api_key":  # of who began it; who follows it has a key of its own
        outcome = ApiError("request_cancelled", "the request was cancelled", retry_after_ms=1_000)
    return Failed.of(outcome)


def _context(request_id: str) -> bytes:
    return _CONTEXT + request_id.encode()
