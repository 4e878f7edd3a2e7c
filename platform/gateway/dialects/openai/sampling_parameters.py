"""What a body says about sampling, put into the words of the wire."""

import secrets
from collections.abc import Mapping

from gateway.dialects.openai.refusals import invalid
from gateway.dialects.openai.sampling_ranges import (
    MAX_BIAS,
    MAX_SEED,
    MAX_TOKEN_DIGITS,
    MAX_TOKEN_ID,
    MIN_SEED,
)
from gateway.dialects.openai.schema import GenerationBody
from gpuworker.wire.messages import Sampling

_SEED_MASK = (1 << 64) - 1


def sampling_validate(body: GenerationBody, *, logprobs: int, prompt_logprobs: int) -> Sampling:
    """`logprobs`, `prompt_logprobs`: alternatives beside each token, -1 for none. Raises ApiError."""
    if body.seed is not None and not MIN_SEED <= body.seed <= MAX_SEED:
        raise invalid("seed", "must fit into 64 bits")
    top_p = _or(body.top_p, 1.0)
    top_k = body.top_k or 0
    if top_p == 0:  # the limit of a shrinking nucleus: the likeliest token
        top_p, top_k = 1.0, 1
    return Sampling(
        temperature=_or(body.temperature, 1.0),
        top_p=top_p,
        top_k=max(top_k, 0),
        seed=secrets.randbits(64) if body.seed is None else body.seed & _SEED_MASK,
        min_p=_or(body.min_p, 0.0),
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        presence_penalty=_or(body.presence_penalty, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        logit_bias=_logit_bias(body.logit_bias or {}),
        min_tokens=body.min_tokens or 0,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _logit_bias(bias: Mapping[str, float]) -> list[tuple[int, float]]:
    values: dict[int, float] = {}
    for token, value in bias.items():
        is_id = len(token) <= MAX_TOKEN_DIGITS and token.isascii() and token.isdigit()
        if not is_id or int(token) > MAX_TOKEN_ID:
            raise invalid("logit_bias", f"must have token ids as keys, not {token[:20]!r}")
        if int(token) in values:
            raise invalid("logit_bias", f"names token {int(token)} twice")
        if not -MAX_BIAS <= value <= MAX_BIAS:
            raise invalid(f"logit_bias[{token}]", f"must be between {-MAX_BIAS:g} and {MAX_BIAS:g}")
        values[int(token)] = value
    return list(values.items())
