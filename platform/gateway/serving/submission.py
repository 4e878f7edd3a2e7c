"""From a translated request to one that runs: model, tokens, limits, deadline, and the streams submitted."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from gateway.answer_parts import Head, Sink
from gateway.answers.recorder import Recorder
from gateway.dialects.base import Ask, Dialect
from gateway.errors import ApiError, LimitDetail, overloaded
from gateway.generation import Generation
from gateway.jobs.job import Job
from gateway.prompts.tokenization import ModelTokenizer
from gateway.quotas.quotas import Reservation
from gateway.runtime import Gateway
from gateway.serving.bounds import logprobs_judge, max_tokens_of, token_ids_judge
from gateway.serving.deadline import DEADLINE_HEADER, deadline_at
from gateway.serving.degrading import (
    DOES_NOT_FIT,
    Degradation,
    choices_drop,
    output_shorten,
    smaller_route,
)
from gateway.upstream.stream import Stream
from gpuworker.manifest import WeightsMismatch
from gpuworker.wire.messages import Submit, pack_ids
from modelsvc.contracts import ModelRoute
from policy.flow import BATCH
from tenants.contracts import KeyGrant

MAX_PROMPTS = 128  # of one request: their usage rows have ids that follow each other

_RETRIES_HEADER = b"x-stainless-retry-count"  # of OpenAI's and Anthropic's clients

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """A request for a generation, whatever carried it. `started_at` is monotonic."""

    dialect: Dialect
    grant: KeyGrant
    headers: Mapping[bytes, bytes]
    body: bytes
    path: str
    request_id: UUID
    started_at: float


@dataclass(frozen=True, slots=True)
class Prepared:
    """All that can be refused was: it may be submitted."""

    call: Call
    ask: Ask
    route: ModelRoute
    tokenizer: ModelTokenizer
    prompts: list[list[int]]  # token ids
    max_tokens: list[int]  # of each prompt's choices
    deadline_at: float
    degradation: Degradation

    @property
    def generation(self) -> Generation:
        return self.ask.generation

    def head(self, request_id: UUID) -> Head:
        return Head(
            request_id=str(request_id),
            created=(request_id.int >> 80) // 1000,  # a UUIDv7 begins with its Unix milliseconds
            model=self.route.slug,
            digest=self.route.digest,
            klass=self.generation.klass,
            prompt_tokens=tuple(map(len, self.prompts)),
            n=self.generation.n,
            seed=self.generation.sampling.seed,
            first_tokens=tuple(ids[0] for ids in self.prompts),
        )


async def prepare(gateway: Gateway, call: Call) -> Prepared:
    """Raises ApiError. Holds nothing."""
    ask = call.dialect.parse(call.body)
    deadline = deadline_at(
        call.headers,
        request_id=call.request_id,
        started_at=call.started_at,
        is_stream=ask.generation.stream,
        max_s=gateway.limits.max_deadline_s,
    )
    route = gateway.route(call.grant, ask.generation.model)
    level = gateway.upstream.pressure.level(route.digest)
    if smaller := smaller_route(gateway, call.grant, route, level):
        try:
            return await _fitted(gateway, call, ask, smaller, deadline, Degradation.to(smaller, level))
        except ApiError as error:
            if error.code not in DOES_NOT_FIT:
                raise
    return await _fitted(gateway, call, ask, route, deadline, Degradation(level))


async def _fitted(
    gateway: Gateway, call: Call, ask: Ask, route: ModelRoute, deadline: float, degradation: Degradation
) -> Prepared:
    """For that model. Raises ApiError."""
    ask = choices_drop(ask, degradation)
    generation = ask.generation
    tokenizer = await tokenizer_get(gateway, route)
    context = gateway.max_context_tokens(route)
    token_ids_judge(generation, tokenizer.vocabulary_size)
    param, keep = generation.names.prompt, generation.truncate_prompt_tokens
    prompts = await tokenizer.encode_all(generation.prompts, context, param=param, keep=keep)
    max_tokens = [max_tokens_of(gateway, call.grant, route, generation, context, len(ids)) for ids in prompts]
    max_tokens = output_shorten(gateway, call.grant, route, generation, max_tokens, degradation)
    logprobs_judge(generation, sum(map(len, prompts)), sum(max_tokens))
    return Prepared(
        call=call,
        ask=ask,
        route=route,
        tokenizer=tokenizer,
        prompts=prompts,
        max_tokens=max_tokens,
        deadline_at=deadline,
        degradation=degradation,
    )


async def tokenizer_get(gateway: Gateway, route: ModelRoute) -> ModelTokenizer:
    """Raises ApiError."""
    try:
        return await gateway.tokenizers.get(route.digest)
    except (WeightsMismatch, OSError) as error:
        logger.error("model %s cannot be served: %s", route.slug, error)
        limit = LimitDetail(name="tokenizer", scope="model", subject=route.slug)
        message = "the model's tokenizer is not available on this gateway"
        raise overloaded(message, 10_000, limit=limit) from error


def submit(
    gateway: Gateway,
    prepared: Prepared,
    *,
    request_id: UUID,
    attempt: int,
    sink: Sink,
    reservation: Reservation,
    recorder: Recorder | None = None,
) -> Job:
    """Raises ApiError when nothing could be submitted; then nothing is held but the reservation."""
    call, now = prepared.call, time.monotonic()
    job = Job(
        request_id=request_id,
        attempt=attempt,
        grant=call.grant,
        route=prepared.route,
        generation=prepared.generation,
        sink=sink,
        recorder=recorder,
        reservation=reservation,
        price=gateway.snapshot().prices.get(prepared.route.slug),
        accepted_at=call.started_at,
        deadline_at=prepared.deadline_at,
        cancel=gateway.upstream.cancel,
        conclude=gateway.conclude,
    )
    deadline_ms = max(int((prepared.deadline_at - now) * 1000), 1)
    for index in range(len(prepared.prompts)):
        message = _submit_message(gateway, prepared, index, request_id, attempt, deadline_ms)
        stream = Stream(
            submit=message,
            prompt=index,
            owner=job,
            deadline_at=prepared.deadline_at,
            now=now,
        )
        job.add(stream)
    gateway.submit(job)
    gateway.metrics.overhead.observe(now - call.started_at)
    return job


def _submit_message(
    gateway: Gateway, prepared: Prepared, index: int, request_id: UUID, attempt: int, deadline_ms: int
) -> Submit:
    generation, grant, route = prepared.generation, prepared.call.grant, prepared.route
    return Submit(
        sid=gateway.upstream.sid_next(),
        request_id=str(UUID(int=request_id.int + index) if index else request_id),
        attempt=attempt,
        tenant=str(grant.tenant_id),
        model=route.slug,
        digest=route.digest,
        klass=generation.klass,
        prompt=pack_ids(prepared.prompts[index]),
        max_tokens=prepared.max_tokens[index],
        sampling=generation.sampling,
        stop=list(generation.stop),
        stop_ids=[*prepared.tokenizer.stop_ids, *generation.stop_token_ids],
        grammar=generation.grammar,
        ignore_eos=generation.ignore_eos,
        deadline_ms=deadline_ms,
        start_ms=_start_ms(gateway, prepared, len(prepared.prompts[index]), deadline_ms),
        n=generation.n,
        echo=generation.echo,
        cache_salt=generation.cache_salt,
        weight=grant.weight,
        retries=_retries_of(prepared.call.headers),
        wants_ids=_may_continue(generation, grant),
        route_revision=route.revision,
        expected_tokens=generation.n
        * gateway.quotas.expected_tokens(grant.tenant_id, route.slug, prepared.max_tokens[index]),
        is_whole=_is_whole(gateway, prepared),
    )


def _is_whole(gateway: Gateway, prepared: Prepared) -> bool:
    """Whether its client, which is told nothing before, is to be told at once where the last token would be
    late. What may be produced at most is no reason to refuse: that has to be learned, or asked for."""
    generation, grant = prepared.generation, prepared.call.grant
    if generation.stream or generation.klass == BATCH:
        return False
    return generation.ignore_eos or gateway.quotas.is_output_known(grant.tenant_id, prepared.route.slug)


def _may_continue(generation: Generation, grant: KeyGrant) -> bool:
    """Whether another replica may go on after tokens that one gave before it was lost. Of a stream only where
    its tenant wants that: what follows may differ from what the lost one would have written."""
    is_simple = generation.n == 1 and not generation.echo and generation.sampling.prompt_logprobs < 0
    return is_simple and (not generation.stream or grant.continues_streams)


def _start_ms(gateway: Gateway, prepared: Prepared, prompt_tokens: int, deadline_ms: int) -> int:
    """A client that says how long it waits is believed; batch waits for its deadline."""
    if prepared.generation.klass == BATCH or DEADLINE_HEADER in prepared.call.headers:
        return 0
    limits, waited_s = gateway.limits, time.monotonic() - prepared.call.started_at
    allowed_s = limits.max_queue_s + limits.max_queue_s_per_token * prompt_tokens
    start_ms = max(int((allowed_s - waited_s) * 1000), 1)
    return start_ms if start_ms < deadline_ms else 0


def _retries_of(headers: Mapping[bytes, bytes]) -> int:
    """Earlier tries of the same request; -1 where its client does not say. A hint, so never an error."""
    said = headers.get(_RETRIES_HEADER, b"")
    return int(said) if said.isdigit() and len(said) <= 3 else -1
