"""What a request must be like to be taken by this engine. No torch here."""

from gpuworker.engine.sampling import sampling_problem
from gpuworker.engine.stop_matcher import stop_problem
from gpuworker.wire.messages import Submit

MAX_CHOICES = 128
WEIGHTS = (0.001, 1000.0)


def submit_problem(
    submit: Submit, prompt: list[int], *, room: int, vocab_size: int
) -> tuple[str, str] | None:
    """What is wrong with it: code and message of a refusal. `room`: tokens that fit behind the prompt."""
    if prompt and room < 1:
        return "too_long", f"the prompt has {len(prompt)} tokens, {len(prompt) + room - 1} can be served"
    message = _problem(submit, prompt, vocab_size)
    return ("unservable", message) if message else None


def _problem(submit: Submit, prompt: list[int], vocab_size: int) -> str:
    if not prompt:
        return "the prompt is empty"
    if max(prompt) >= vocab_size:
        return f"token id {max(prompt)} is outside the vocabulary of {vocab_size}"
    wants_prompt = submit.echo or submit.sampling.prompt_logprobs >= 0
    if submit.max_tokens < (0 if wants_prompt else 1):
        return f"max_tokens is {submit.max_tokens}"
    if not 1 <= submit.n <= MAX_CHOICES:
        return f"n is {submit.n}, it must lie in [1, {MAX_CHOICES}]"
    if not WEIGHTS[0] <= submit.weight <= WEIGHTS[1]:
        return f"weight is {submit.weight}, it must lie in [{WEIGHTS[0]:g}, {WEIGHTS[1]:g}]"
    if submit.emitted and not (0 < submit.emitted < len(prompt) and submit.n == 1 and not submit.echo):
        return f"{submit.emitted} emitted tokens cannot be gone on from"
    if 0 < submit.max_tokens <= submit.emitted:
        return "all its tokens were emitted"
    if submit.grammar is not None and submit.sampling.min_tokens:
        return "min_tokens cannot be combined with a grammar: the grammar decides where the text may end"
    if outside := [token for token in submit.stop_ids if not 0 <= token < vocab_size]:
        return f"stop token id {outside[0]} is outside the vocabulary of {vocab_size}"
    return sampling_problem(submit.sampling, vocab_size) or stop_problem(submit.stop)
