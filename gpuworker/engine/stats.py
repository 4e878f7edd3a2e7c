"""What the engine tells of itself."""

from dataclasses import dataclass

from policy.step_cost import StepCost


@dataclass(frozen=True, slots=True)
class EngineStats:
    running: int  # rows holding KV
    waiting: int
    pending_prefill_tokens: int
    blocks: int
    free_blocks: int
    cached_blocks: int  # holding a prefix that can be found, in use or not
    step: int
    step_ms: float  # the last step
    batch_rows: int  # the last step
    paused: int  # decodes that the last step left out
    preemptions: int  # since start
    swaps: int  # preemptions to host memory, since start
    prompt_tokens: int  # of rows that began, since start
    cached_tokens: int  # of these, found in the prefix cache
    output_tokens: int  # since start
    cost: StepCost | None = None  # of a step, as fitted; None: not measured
    row_limit: int = 0  # rows like the running ones that can decode within the target latency; 0: no step yet
    is_full: bool = False  # nothing more is taken for now, whatever the figures say
    usage_mismatches: int = 0  # since start: requests whose upstream counted otherwise than we did


@dataclass(slots=True)
class Counters:
    """The part of the statistics that nobody else counts."""

    step: int = 0
    step_ms: float = 0.0
    batch_rows: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
