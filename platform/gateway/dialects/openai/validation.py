"""From a decoded body to what may be run: parameters checked, defaults chosen, nothing silently dropped."""

from gateway.dialects.openai.neutral import neutral_require
from gateway.dialects.openai.refusals import invalid, unsupported
from gateway.dialects.openai.sampling_parameters import sampling_validate
from gateway.dialects.openai.schema import MAX_CHOICES, TIERS, GenerationBody
from gateway.dialects.openai.structured_output import grammar_validate
from gateway.generation import Generation, Names, Prompt


def generation_validate(
    body: GenerationBody,
    prompts: tuple[Prompt, ...],
    *,
    prompt_param: str,
    max_tokens_param: str,
    logprobs: int,
    echo: bool = False,
    exempt: frozenset[str] = frozenset(),
) -> Generation:
    """`logprobs`: alternatives beside each output token, -1 for none; `exempt`: parameters that another one
    turns off. Raises ApiError."""
    neutral_require(body, exempt=exempt)
    _stream_validate(body)
    n = _choices_validate(body, len(prompts))
    max_tokens: int | None = getattr(body, max_tokens_param)
    if max_tokens == 0 and not echo:
        raise invalid(max_tokens_param, "must be at least 1 without echo")
    if max_tokens is not None and (body.min_tokens or 0) > max_tokens:
        raise invalid("min_tokens", f"must not be above {max_tokens_param}")
    prompt_logprobs = -1 if body.prompt_logprobs is None else body.prompt_logprobs
    grammar_param, grammar = grammar_validate(body)
    return Generation(
        model=body.model,
        prompts=prompts,
        stream=bool(body.stream),
        sampling=sampling_validate(
            body, logprobs=logprobs, prompt_logprobs=max(prompt_logprobs, logprobs if echo else -1)
        ),
        max_tokens=max_tokens,
        stop=_stop(body.stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        grammar=grammar,
        ignore_eos=bool(body.ignore_eos),
        n=n,
        echo=echo,
        klass=_klass(body),
        truncate_prompt_tokens=body.truncate_prompt_tokens,
        cache_salt=body.cache_salt or "",
        resumable=bool(body.resumable),
        names=Names(prompt=prompt_param, max_tokens=max_tokens_param, grammar=grammar_param),
    )


def include_usage(body: GenerationBody) -> bool:
    return bool(body.stream_options and body.stream_options.include_usage)


def _stream_validate(body: GenerationBody) -> None:
    if body.stream_options is not None:
        if not body.stream:
            raise invalid("stream_options", "is only allowed when stream is true")
        neutral_require(body.stream_options, "stream_options.")
    if body.prompt_logprobs is not None and body.stream:
        raise invalid("prompt_logprobs", "is only allowed without stream")


def _choices_validate(body: GenerationBody, prompts: int) -> int:
    n = body.n or 1
    if prompts * n > MAX_CHOICES:
        raise invalid("n", f"times the number of prompts must be at most {MAX_CHOICES}")
    if body.best_of is not None and body.best_of != n:
        raise unsupported("best_of", "is only supported where it equals n: every choice is returned")
    return n


def _klass(body: GenerationBody) -> str:
    """vLLM's `priority`: lower is earlier, so above 0 is the batch class."""
    if body.service_tier is not None and body.service_tier not in TIERS:
        raise invalid("service_tier", f"must be one of {', '.join(TIERS)}")
    klass = TIERS[body.service_tier or "auto"]
    priority = body.priority or 0
    if body.service_tier in (None, "auto"):
        return "batch" if priority > 0 else klass
    if priority and klass != ("batch" if priority > 0 else "interactive"):
        raise invalid("priority", f"{priority} contradicts a service_tier of {body.service_tier}")
    return klass


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)
