"""One generation request from its headers to its end: accept, authenticate, validate, submit, deliver."""

import asyncio
import logging
import math
import time

from billing.contracts import UsageRecord
from gateway.auth import SCOPE_COMPLETIONS, scope_require
from gateway.delivery import Delivery
from gateway.errors import ApiError, overloaded
from gateway.http import ClientLeft, Exchange
from gateway.replies import ChatReply, CompletionReply, Reply
from gateway.runtime import Gateway
from gateway.schema import CHAT, COMPLETION, decode
from gateway.stream import Stream
from gateway.tokenization import context_length_error
from gateway.usage import ATTEMPT
from gateway.validation import Generation, chat_validate, completion_validate
from gpuworker.manifest import WeightsMismatch
from gpuworker.wire.messages import Submit, pack_ids
from modelsvc.contracts import ModelRoute
from tenants.contracts import KeyGrant

_MIN_DEADLINE_S = 1.0

logger = logging.getLogger(__name__)


async def chat_completions(gateway: Gateway, exchange: Exchange) -> None:
    """Raises ApiError while the status is still open."""
    await _generate(gateway, exchange, is_chat=True)


async def completions(gateway: Gateway, exchange: Exchange) -> None:
    """Raises ApiError while the status is still open."""
    await _generate(gateway, exchange, is_chat=False)


async def _generate(gateway: Gateway, exchange: Exchange, *, is_chat: bool) -> None:
    grant = gateway.authenticate(exchange)
    scope_require(grant, SCOPE_COMPLETIONS)
    gateway.admit()
    body = await gateway.bodies.read(exchange)
    watcher: asyncio.Task[None] | None = None
    try:
        try:
            generation = _validate(body, is_chat=is_chat)
            route = gateway.route(grant, generation.model)
            watcher = asyncio.create_task(_disconnect_wait(exchange))
            submit = await _prepare(gateway, exchange, grant, route, generation)
        finally:
            gateway.bodies.release(len(body))
        if watcher.done():
            raise ClientLeft
        await _run(gateway, exchange, grant, route, generation, submit, watcher)
    finally:
        if watcher is not None:
            watcher.cancel()


def _validate(body: bytes, *, is_chat: bool) -> Generation:
    if is_chat:
        return chat_validate(decode(body, CHAT))
    return completion_validate(decode(body, COMPLETION))


async def _prepare(
    gateway: Gateway, exchange: Exchange, grant: KeyGrant, route: ModelRoute, generation: Generation
) -> Submit:
    context = gateway.max_context_tokens(route)
    try:
        tokenizer = await gateway.tokenizers.get(route.digest)
    except (WeightsMismatch, OSError) as error:
        logger.error("model %s cannot be served: %s", route.slug, error)
        raise overloaded("the model's tokenizer is not available on this gateway", 10_000) from error
    ids = await tokenizer.encode(generation, context)
    param = "messages" if generation.is_chat else "prompt"
    if not ids:
        raise ApiError("invalid_value", "the prompt is empty", param=param)
    remaining = context - len(ids)
    if remaining < 1:
        raise context_length_error(context, len(ids), param=param)
    if generation.max_tokens is None:
        max_tokens = min(remaining, gateway.limits.default_max_tokens)
    elif generation.max_tokens > remaining:
        raise ApiError(
            "context_length_exceeded",
            f"the prompt has {len(ids)} tokens and {generation.max_tokens} more are asked for; "
            f"this model's context is {context} tokens",
            param=generation.max_tokens_param,
        )
    else:
        max_tokens = generation.max_tokens
    return Submit(
        sid=gateway.upstream.sid_next(),
        request_id=str(exchange.request_id),
        attempt=ATTEMPT,
        tenant=str(grant.tenant_id),
        model=route.slug,
        digest=route.digest,
        klass=generation.klass,
        prompt=pack_ids(ids),
        max_tokens=max_tokens,
        sampling=generation.sampling,
        stop=generation.stop,
        stop_ids=[*tokenizer.stop_ids, *generation.stop_token_ids],
        grammar=generation.grammar,
        ignore_eos=generation.ignore_eos,
        deadline_ms=int(_deadline_s(gateway, exchange, generation) * 1000),
    )


def _deadline_s(gateway: Gateway, exchange: Exchange, generation: Generation) -> float:
    """What is left of the client's patience, where it told us: its read timeout bounds a whole answer."""
    allowed_s = gateway.limits.max_deadline_s
    if not generation.stream:
        try:
            patience_s = float(exchange.headers.get(b"x-stainless-read-timeout", b"nan"))
        except ValueError:
            patience_s = math.nan
        if patience_s >= _MIN_DEADLINE_S:
            allowed_s = min(allowed_s, patience_s)
    return max(allowed_s - (time.monotonic() - exchange.started_at), 0.001)


async def _run(
    gateway: Gateway,
    exchange: Exchange,
    grant: KeyGrant,
    route: ModelRoute,
    generation: Generation,
    submit: Submit,
    watcher: "asyncio.Task[None]",
) -> None:
    now = time.monotonic()
    reply = _reply(exchange, route, generation)
    stream = Stream(
        sid=submit.sid,
        request_id=exchange.request_id,
        grant=grant,
        route=route,
        generation=generation,
        submit=submit,
        frame=reply.frame(include_usage=generation.include_usage) if generation.stream else None,
        accepted_at=exchange.started_at,
        deadline_at=now + submit.deadline_ms / 1000,
        now=now,
    )
    gateway.stopping_refuse()
    gateway.upstream.submit(stream)
    gateway.metrics.overhead.observe(now - stream.accepted_at)
    watcher.add_done_callback(lambda _: stream.leave())
    is_concluding = False

    async def conclude_shielded(ended: Stream) -> UsageRecord:
        nonlocal is_concluding
        is_concluding = True
        return await asyncio.shield(gateway.conclude(ended))

    try:
        await Delivery(exchange, stream, reply, gateway.limits, conclude_shielded).run()
    finally:
        if not is_concluding:  # the server cancelled this task, or a defect: the request still ends and bills
            stream.leave()
            gateway.conclude(stream)


def _reply(exchange: Exchange, route: ModelRoute, generation: Generation) -> Reply:
    kind, prefix = (ChatReply, "chatcmpl-") if generation.is_chat else (CompletionReply, "cmpl-")
    created = exchange.request_id.int >> 80  # a UUIDv7 begins with its Unix milliseconds
    return kind(
        f"{prefix}{exchange.request_id.hex}",
        created // 1000,
        route.slug,
        route.digest,
        generation.service_tier,
    )


async def _disconnect_wait(exchange: Exchange) -> None:
    while (await exchange.receive())["type"] != "http.disconnect":
        pass
