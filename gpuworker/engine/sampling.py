"""Checks of the sampling parameters a request may carry. No torch here; `sampler` applies them."""

import math

from gpuworker.wire.messages import Sampling

GREEDY_BELOW = 1e-5  # temperatures under this take the most likely token


def sampling_problem(sampling: Sampling) -> str:
    """What is wrong with the parameters, or an empty string."""
    if not (math.isfinite(sampling.temperature) and sampling.temperature >= 0):
        return f"temperature is {sampling.temperature}"
    if not 0 < sampling.top_p <= 1:
        return f"top_p is {sampling.top_p}, it must lie in (0, 1]"
    if sampling.top_k < 0:
        return f"top_k is {sampling.top_k}"
    return ""
