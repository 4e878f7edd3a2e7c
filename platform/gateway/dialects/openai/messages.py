"""Chat messages as the template sees them: text alone, from the roles that a template knows."""

from gateway.dialects.openai.neutral import neutral_require
from gateway.dialects.openai.refusals import unsupported
from gateway.dialects.openai.schema import ChatMessage
from gateway.errors import ApiError
from gateway.generation import Message

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TOOL_ROLES = ("tool", "function")


def message_validate(message: ChatMessage, param: str) -> Message:
    """`param`: what to call it in an error. Raises ApiError."""
    neutral_require(message, f"{param}.")
    role = ROLES.get(message.role)
    if role is None:
        if message.role in _TOOL_ROLES:
            raise unsupported(f"{param}.role", f"{message.role!r} is not supported: tools are not")
        rule = f"must be one of {', '.join(ROLES)}"
        raise ApiError("invalid_value", f"{param}.role {rule}", param=f"{param}.role")
    content = message.content
    if content is None and role == "assistant":
        content = message.refusal
    if content is None:
        raise ApiError("missing_required_parameter", "a message needs content", param=f"{param}.content")
    if isinstance(content, str):
        return Message(role, content)
    texts = []
    for index, part in enumerate(content):
        where = f"{param}.content[{index}]"
        is_refusal = part.type == "refusal" and role == "assistant"
        if part.type != "text" and not is_refusal:
            raise unsupported(f"{where}.type", f"{part.type!r} is not supported: only text is")
        text = part.refusal if is_refusal else part.text
        if text is None:
            missing = f"a {part.type} part needs {part.type}"
            raise ApiError("missing_required_parameter", missing, param=f"{where}.{part.type}")
        texts.append(text)
    return Message(role, "".join(texts))
