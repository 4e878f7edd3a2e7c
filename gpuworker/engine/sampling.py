"""Checks of the sampling parameters a request may carry, and the seeds of its choices. No torch here;
`sampler` applies them."""

import math

from gpuworker.wire.messages import Sampling

GREEDY_BELOW = 1e-5  # temperatures under this take the most likely token
MAX_LOGPROBS = 20
MAX_BIASED_TOKENS = 1024
MAX_REPETITION_PENALTY = 10.0
_MASK = (1 << 64) - 1


def sampling_problem(sampling: Sampling, vocab_size: int | None = None) -> str:
    """What is wrong with the parameters, or an empty string. `vocab_size` None: ids are not looked at.

    Ranges are OpenAI's where it has the parameter (temperature has no upper bound here), else vLLM's.
    Written so that NaN is outside every range.
    """
    ranges: tuple[tuple[str, float, float, float], ...] = (
        ("min_p", sampling.min_p, 0, 1),
        ("presence_penalty", sampling.presence_penalty, -2, 2),
        ("frequency_penalty", sampling.frequency_penalty, -2, 2),
        ("logprobs", sampling.logprobs, -1, MAX_LOGPROBS),
        ("prompt_logprobs", sampling.prompt_logprobs, -1, MAX_LOGPROBS),
    )
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        return f"temperature is {sampling.temperature}, it must be 0 or a finite number above"
    if not 0 < sampling.top_p <= 1:
        return f"top_p is {sampling.top_p}, it must lie in (0, 1]"
    if not 0 < sampling.repetition_penalty <= MAX_REPETITION_PENALTY:
        return (
            f"repetition_penalty is {sampling.repetition_penalty}, it must lie in "
            f"(0, {MAX_REPETITION_PENALTY:g}]"
        )
    for name, value, low, high in ranges:
        if not low <= value <= high:
            return f"{name} is {value}, it must lie in [{low:g}, {high:g}]"
    for name, count in (("top_k", sampling.top_k), ("min_tokens", sampling.min_tokens)):
        if count < 0:
            return f"{name} is {count}, it must not be negative"
    return _bias_problem(sampling.logit_bias, vocab_size)


def _bias_problem(bias: list[tuple[int, float]], vocab_size: int | None) -> str:
    if len(bias) > MAX_BIASED_TOKENS:
        return f"logit_bias has {len(bias)} entries, at most {MAX_BIASED_TOKENS} are allowed"
    if len({token for token, _ in bias}) < len(bias):
        return "logit_bias names a token twice"
    for token, value in bias:
        if token < 0 or (vocab_size is not None and token >= vocab_size):
            return f"logit_bias names token {token}, which the model does not have"
        if not -100 <= value <= 100:
            return f"logit_bias of token {token} is {value}, it must lie in [-100, 100]"
    return ""


def choice_seed(seed: int, choice: int) -> int:
    """64-bit seed of one of a request's choices: choice 0 has the request's own, the others a hash of it."""
    seed &= _MASK
    return seed if choice == 0 else _splitmix(_splitmix(seed) ^ choice)


def _splitmix(value: int) -> int:
    """One output of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
