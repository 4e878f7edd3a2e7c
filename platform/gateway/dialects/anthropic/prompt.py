"""System prompt and turns of a Messages request as the chat template sees them. Text only."""

from collections.abc import Iterator
from itertools import groupby

from gateway.dialects.anthropic.schema import Block, PromptBody, Turn
from gateway.dialects.openai.neutral import neutral_require
from gateway.dialects.openai.refusals import invalid, unsupported
from gateway.errors import ApiError
from gateway.generation import Message, Prompt

TURN_BREAK = "\n\n"  # between turns of one role, which the API combines into one
_ROLES = ("user", "assistant", "system")


def prompt_make(body: PromptBody) -> Prompt:
    """Raises ApiError; also for what asks for more than text: tools, thinking, documents, prefill."""
    _tools_refuse(body)
    turns = list(_turns(body))
    if turns[-1].role == "assistant":
        rule = "must not be an assistant turn at the end: prefill is not supported"
        raise unsupported(f"messages[{len(body.messages) - 1}].role", rule)
    combined = [
        Message(role, TURN_BREAK.join(turn.content for turn in group))
        for role, group in groupby(turns, key=lambda turn: turn.role)
    ]
    return Prompt(messages=tuple(combined))


def _turns(body: PromptBody) -> Iterator[Message]:
    if body.system:
        yield Message("system", _text(body.system, "system"))
    for index, turn in enumerate(body.messages):
        yield _message(turn, f"messages[{index}]")


def _message(turn: Turn, param: str) -> Message:
    if turn.role not in _ROLES:
        raise invalid(f"{param}.role", f"must be one of {', '.join(_ROLES)}")
    return Message(turn.role, _text(turn.content, f"{param}.content"))


def _text(content: str | list[Block], param: str) -> str:
    if isinstance(content, str):
        return content
    return "".join(_block_text(block, f"{param}[{index}]") for index, block in enumerate(content))


def _block_text(block: Block, param: str) -> str:
    if block.type != "text":
        raise unsupported(f"{param}.type", f"is {block.type[:40]!r}: only text is supported")
    if block.text is None:
        raise ApiError("missing_required_parameter", "a text block needs text", param=f"{param}.text")
    return block.text


def _tools_refuse(body: PromptBody) -> None:
    choice = body.tool_choice
    if choice is not None and choice.type not in ("none", "auto"):
        raise unsupported("tool_choice", "is not supported with this value: there are no tools here")
    wants_none = choice is not None and choice.type == "none"
    neutral_require(body, exempt=frozenset({"tools"}) if wants_none else frozenset())
    if body.output_config is not None:
        neutral_require(body.output_config, "output_config.")
