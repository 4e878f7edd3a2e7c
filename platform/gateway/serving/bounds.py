"""What one generation may ask of its model: output tokens, token ids, log probabilities."""

from gateway.errors import ApiError, LimitDetail
from gateway.generation import Generation
from gateway.prompts.tokenization import context_length_error
from gateway.runtime import Gateway
from modelsvc.contracts import ModelRoute
from tenants.contracts import KeyGrant

MAX_LOGPROBS = 500_000  # of one request: tokens times alternatives


def max_tokens_of(
    gateway: Gateway,
    grant: KeyGrant,
    route: ModelRoute,
    generation: Generation,
    context: int,
    prompt_tokens: int,
) -> int:
    """Output tokens of each choice of one prompt. Raises ApiError."""
    names, asked = generation.names, generation.max_tokens
    if not prompt_tokens:
        raise ApiError("invalid_value", "the prompt is empty", param=names.prompt)
    remaining = context - prompt_tokens
    if asked == 0 and remaining >= 0:
        return 0
    if remaining < 1:
        raise context_length_error(context, prompt_tokens, param=names.prompt)
    wanted, param = (
        (asked, names.max_tokens) if asked is not None else (generation.sampling.min_tokens, "min_tokens")
    )
    if wanted > remaining:
        raise ApiError(
            "context_length_exceeded",
            f"the prompt has {prompt_tokens} tokens and {wanted} more are asked for; "
            f"this model's context is {context} tokens",
            param=param,
        )
    bounds = [bound for bound in (grant.max_output_tokens, route.max_output_tokens) if bound is not None]
    if bounds and wanted > min(bounds):
        is_tenants = grant.max_output_tokens == min(bounds)
        raise ApiError(
            "output_limit_exceeded",
            f"{wanted} output tokens are asked for; at most {min(bounds)} are allowed",
            param=param,
            limit=LimitDetail(
                name="output_tokens",
                scope="tenant" if is_tenants else "model",
                subject=grant.tenant_name if is_tenants else route.slug,
                limit=min(bounds),
            ),
        )
    if asked is not None:
        return asked
    return min(remaining, max(gateway.limits.default_max_tokens, wanted), *bounds)


def token_ids_judge(generation: Generation, vocabulary_size: int) -> None:
    """Raises ApiError."""
    named = {
        "logit_bias": [token for token, _ in generation.sampling.logit_bias],
        "stop_token_ids": generation.stop_token_ids,
    }
    for param, ids in named.items():
        if ids and max(ids) >= vocabulary_size:
            rule = f"{param} must name tokens between 0 and {vocabulary_size - 1}"
            raise ApiError("invalid_value", rule, param=param)


def logprobs_judge(generation: Generation, prompt_tokens: int, max_tokens: int) -> None:
    """Each one is some hundred bytes of an answer that is built in one piece. Raises ApiError."""
    sampling = generation.sampling
    of_prompts = prompt_tokens * (1 + sampling.prompt_logprobs)
    of_output = max_tokens * generation.n * (1 + sampling.logprobs)
    if of_prompts + of_output > MAX_LOGPROBS:
        raise ApiError(
            "invalid_value",
            f"up to {of_prompts + of_output} log probabilities are asked for, of at most {MAX_LOGPROBS}",
            param="logprobs" if of_output > of_prompts else "prompt_logprobs",
        )
