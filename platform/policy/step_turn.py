"""Whose prompt goes on next inside a replica's step. Used by the engine's scheduler and by the simulator.

Fairness between flows over seconds is the counters' matter. Inside a step the least served flow is next, but
a prompt that ends within a step or two is not to wait behind thousands of tokens of another one: with eight
replicas at 2.5 requests a second beside a noisy neighbour, the last 3 tokens of a prompt waited 700 ms for
that.
"""

from typing import NamedTuple

from policy.flow import Flow
from policy.placement import PREFILL_WINDOW_TOKENS

SHORT_TOKENS = PREFILL_WINDOW_TOKENS  # no more than what a replica may have pending when more is placed there
PAUSE_MS = 250.0  # who was left out for so long is overtaken by nobody because of its length


class Turn(NamedTuple):
    """The smallest is next: batch is last while it yields; streams that were interrupted go on before others
    begin; then who needs little, or was left out for long; then the least served."""

    is_last: bool
    begins: bool
    waits: bool  # of those that begin
    time_us: int
    flow: Flow


def may_overtake(left_tokens: int, left_out_ms: float, *, is_over: bool) -> bool:
    """Whether a prompt of which so much is left goes before those of less served flows. One of a flow that is
    over its share does not for being short: the flow would gain from cutting its prompts into small ones."""
    return left_out_ms >= PAUSE_MS or (not is_over and left_tokens <= SHORT_TOKENS)
