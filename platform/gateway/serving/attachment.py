"""Answers that a request does not compute: followed in the token log as they run, or read from the store."""

import asyncio
import logging
import time
from collections.abc import Iterator
from functools import partial
from uuid import UUID

import msgspec

from billing.idempotency import Stored
from gateway.answer_parts import Finished, PromptRow, Row
from gateway.answers.answer import Answer, Framing
from gateway.answers.recorder import answer_open
from gateway.answers.served import FramingFor, Served
from gateway.answers.stream_id import StreamId
from gateway.dialects.base import Renderer
from gateway.dialects.registry import DIALECTS
from gateway.errors import ApiError, LimitDetail, overloaded
from gateway.http.exchange import HeaderList
from gateway.prompts.tokenization import ModelTokenizer
from gateway.runtime import Gateway
from gateway.token_log.entries import Entry, Failed, Opened
from gateway.token_log.follow import Lost
from gateway.token_log.log import LogUnavailable
from gpuworker.manifest import WeightsMismatch
from tenants.contracts import KeyGrant

REPLAYED: HeaderList = [(b"idempotent-replayed", b"true")]

logger = logging.getLogger(__name__)


async def attach(
    gateway: Gateway,
    grant: KeyGrant,
    stream_id: StreamId | UUID,
    framing_for: FramingFor,
    *,
    is_numbered: bool,
    after: int = 0,
    deadline_at: float | None = None,
) -> Served | None:
    """Of a request's id alone: to its newest attempt. None when there is no such log, or not yet.

    The answer fails with `gateway_lost` when its owner dies, with `request_in_progress` at the deadline
    (monotonic seconds). Raises ApiError.
    """
    request_id = stream_id if isinstance(stream_id, UUID) else stream_id.request_id
    try:
        opened = await gateway.token_log.find(grant.tenant_id, request_id, grant.data_key)
    except LogUnavailable as error:
        raise logs_away(gateway) from error
    if opened is None or (isinstance(stream_id, StreamId) and stream_id.attempt != opened.attempt):
        return None
    name = str(StreamId(request_id, opened.attempt))
    framing = framing_for(name, is_numbered) if opened.stream else None
    answer = await _answer_make(gateway, opened, framing, after)
    follow = gateway.token_log.follow(
        grant.tenant_id,
        request_id,
        opened.attempt,
        grant.data_key,
        partial(feed, answer),
        partial(_lost, answer),
    )
    answer.on_backlog = lambda is_paused: follow.pause() if is_paused else follow.resume()
    timer = None
    if deadline_at is not None:
        wait_s = max(deadline_at - time.monotonic(), 0.0)
        timer = asyncio.get_running_loop().call_later(wait_s, answer.break_off, in_progress())

    def leave() -> None:
        follow.close()
        if timer is not None:
            timer.cancel()

    return Served(answer, request_id, grant, leave, is_computed_here=False, headers=list(REPLAYED))


def logs_away(gateway: Gateway) -> ApiError:
    limit = LimitDetail(name="token_logs", scope="gateway", subject=gateway.settings.gateway_id)
    return overloaded("the logs of running answers cannot be reached now", limit=limit)


def in_progress() -> ApiError:
    message = "the first request with this idempotency key is still running"
    return ApiError("request_in_progress", message, retry_after_ms=1_000)


async def replay(
    gateway: Gateway, grant: KeyGrant, stored: Stored, framing_for: FramingFor, *, is_numbered: bool
) -> Served:
    """Raises ApiError when the answer was not kept."""
    usage = {
        "prompt_tokens": stored.prompt_tokens,
        "completion_tokens": stored.output_tokens,
        "total_tokens": stored.prompt_tokens + stored.output_tokens,
    }
    if stored.answer is None:
        message = "the request with this idempotency key is finished, but its answer was not kept"
        raise ApiError("replay_not_available", message, usage=usage)
    try:
        opened, entries = answer_open(grant, stored.request_id, stored.answer)
    except ValueError as error:
        logger.error("request %s: its stored answer cannot be opened: %s", stored.request_id, error)
        message = "the request with this idempotency key is finished, but its answer cannot be read any more"
        raise ApiError("replay_not_available", message, usage=usage) from error
    name = str(StreamId(stored.request_id, stored.attempt))
    framing = framing_for(name, is_numbered) if opened.stream else None
    answer = await _answer_make(gateway, opened, framing, 0)
    _feed_paced(answer, iter(entries))
    return Served(
        answer, stored.request_id, grant, lambda: None, is_computed_here=False, headers=list(REPLAYED)
    )


def renderer_of(opened: Opened, tokenizer: ModelTokenizer) -> Renderer:
    dialect = DIALECTS[opened.dialect]
    options = msgspec.msgpack.decode(opened.options, type=dialect.options_type)
    return dialect.renderer(options, opened.head, tokenizer)


def feed(answer: Answer, entry: Entry) -> None:
    match entry:
        case Row():
            answer.row(entry)
        case PromptRow():
            answer.prompt_row(entry)
        case Finished():
            answer.finished(entry)
        case Failed():
            answer.failed(entry.error())


def _feed_paced(answer: Answer, entries: Iterator[Entry]) -> None:
    """As its client takes it: all of a long one at once would hold the event loop, and pass for unread."""

    def go_on(is_paused: bool) -> None:
        while not (is_paused or answer.is_backlogged) and (entry := next(entries, None)) is not None:
            feed(answer, entry)

    answer.on_backlog = go_on
    go_on(False)


async def _answer_make(gateway: Gateway, opened: Opened, framing: Framing | None, after: int) -> Answer:
    head = opened.head
    try:
        tokenizer = await gateway.tokenizers.get(head.digest)
    except (WeightsMismatch, OSError) as error:
        logger.error("request %s cannot be read here: %s", head.request_id, error)
        limit = LimitDetail(name="tokenizer", scope="model", subject=head.model)
        message = "the tokenizer of this answer is not available on this gateway"
        raise overloaded(message, 10_000, limit=limit) from error
    return Answer(
        renderer_of(opened, tokenizer),
        framing,
        choices=head.choices,
        prompts=len(head.prompt_tokens),
        now=time.monotonic(),
        after=after,
        pause_bytes=gateway.limits.pause_bytes,
    )


def _lost(answer: Answer, cause: Lost) -> None:
    logger.warning("a followed answer was lost: %s", cause)
    message = "the gateway that computed this answer was lost"
    if cause != "owner_lost":
        message = "the rest of this answer cannot be read any more"
    answer.break_off(ApiError("gateway_lost", message, retry_after_ms=1_000))
