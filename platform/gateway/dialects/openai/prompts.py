"""The four forms of a completion's `prompt`: a text, token ids, and lists of either."""

from collections.abc import Sequence

from gateway.dialects.openai.refusals import invalid
from gateway.dialects.openai.schema import MAX_PROMPTS
from gateway.generation import Prompt


def prompts_validate(prompt: str | Sequence[str | int | list[int]]) -> tuple[Prompt, ...]:
    """Raises ApiError."""
    if isinstance(prompt, str):
        return (Prompt(text=prompt),)
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1:
        raise invalid("prompt", "must hold only strings, only token ids, or only lists of token ids")
    if kinds == {int}:
        return (Prompt(ids=tuple(item for item in prompt if isinstance(item, int))),)
    if len(prompt) > MAX_PROMPTS:
        raise invalid("prompt", f"must hold at most {MAX_PROMPTS} prompts")
    return tuple(
        Prompt(text=item) if isinstance(item, str) else Prompt(ids=tuple(item))
        for item in prompt
        if not isinstance(item, int)
    )
