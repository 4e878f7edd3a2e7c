"""What a body says about sampling, checked and put into the words of the wire.

Ranges are OpenAI's where it has the parameter, else vLLM's; names are those that their clients send.
"""

import secrets
from collections.abc import Mapping

from gateway.errors import ApiError
from gateway.schema import GenerationBody
from gpuworker.wire.messages import Sampling

MAX_TEMPERATURE = 2.0
MAX_REPETITION_PENALTY = 10.0
MAX_BIASED_TOKENS = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_TOKEN_ID = (1 << 31) - 1
_SEED_MASK = (1 << 64) - 1
_MIN_SEED = -9_223_372_036_854_776_000  # -2**63 and 2**64, as JavaScript writes them
_MAX_SEED = 18_446_744_073_709_552_000


def sampling_validate(body: GenerationBody) -> Sampling:
    """Raises ApiError."""
    top_p = _within("top_p", body.top_p, 1.0, 0, 1)
    top_k = 0 if body.top_k is None else body.top_k
    if not -1 <= top_k < 1 << 31:
        raise invalid("top_k", f"must be 0 or -1 for off, or up to {(1 << 31) - 1}")
    if body.seed is not None and not _MIN_SEED <= body.seed <= _MAX_SEED:
        raise invalid("seed", "must fit into 64 bits")
    repetition_penalty = _within(
        "repetition_penalty", body.repetition_penalty, 1.0, 0, MAX_REPETITION_PENALTY
    )
    if not repetition_penalty:
        raise invalid("repetition_penalty", "must be above 0; 1 changes nothing")
    min_tokens = body.min_tokens or 0
    if min_tokens < 0:
        raise invalid("min_tokens", f"must not be negative, not {min_tokens}")
    if top_p == 0:  # the limit of a shrinking nucleus: the likeliest token
        top_p, top_k = 1.0, 1
    return Sampling(
        temperature=_within("temperature", body.temperature, 1.0, 0, MAX_TEMPERATURE),
        top_p=top_p,
        top_k=max(top_k, 0),
        seed=secrets.randbits(64) if body.seed is None else body.seed & _SEED_MASK,
        min_p=_within("min_p", body.min_p, 0.0, 0, 1),
        repetition_penalty=repetition_penalty,
        presence_penalty=_within("presence_penalty", body.presence_penalty, 0.0, -2, 2),
        frequency_penalty=_within("frequency_penalty", body.frequency_penalty, 0.0, -2, 2),
        logit_bias=_logit_bias(body.logit_bias or {}),
        min_tokens=min_tokens,
    )


def stop_token_ids_validate(ids: list[int] | None) -> list[int]:
    """Raises ApiError."""
    if ids and len(ids) > MAX_STOP_TOKEN_IDS:
        raise invalid("stop_token_ids", f"must hold at most {MAX_STOP_TOKEN_IDS} ids")
    if wrong := [token for token in ids or [] if not 0 <= token <= MAX_TOKEN_ID]:
        raise invalid("stop_token_ids", f"must hold token ids, not {wrong[0]}")
    return ids or []


def invalid(param: str, rule: str) -> ApiError:
    return ApiError("invalid_value", f"{param} {rule}", param=param)


def _within(param: str, value: float | None, default: float, low: float, high: float) -> float:
    if value is None:
        return default
    if not low <= value <= high:
        raise invalid(param, f"must be between {low:g} and {high:g}, not {value:g}")
    return value


def _logit_bias(bias: Mapping[str, float]) -> list[tuple[int, float]]:
    if len(bias) > MAX_BIASED_TOKENS:
        raise invalid("logit_bias", f"must hold at most {MAX_BIASED_TOKENS} tokens")
    values: dict[int, float] = {}
    for token, value in bias.items():
        if not (token.isascii() and token.isdigit() and int(token[:11]) <= MAX_TOKEN_ID):
            raise invalid("logit_bias", f"must have token ids as keys, not {token[:20]!r}")
        if int(token) in values:
            raise invalid("logit_bias", f"names token {int(token)} twice")
        values[int(token)] = _within(f"logit_bias[{token}]", value, 0.0, -100, 100)
    return list(values.items())
