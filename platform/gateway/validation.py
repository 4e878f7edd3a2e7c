"""From a decoded body to what may be run: parameters checked, defaults chosen, nothing silently dropped."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gateway.errors import ApiError
from gateway.sampling_parameters import invalid, sampling_validate, stop_token_ids_validate
from gateway.schema import NEUTRAL, ChatBody, ChatMessage, CompletionBody, GenerationBody, is_neutral
from gateway.structured_output import grammar_validate
from gpuworker.wire.messages import Grammar, Sampling

MAX_STOP_STRINGS = 4
MAX_STOP_CHARACTERS = 256
MAX_MESSAGES = 32_768
_MAX_MODEL_CHARACTERS = 256
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_TIERS = {
    "auto": "interactive",
    "default": "interactive",
    "fast": "interactive",
    "priority": "interactive",
    "scale": "interactive",
    "flex": "batch",
}


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message as the template sees it."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Generation:
    """A checked request. Exactly one of `messages`, `text` and `ids` holds the prompt."""

    is_chat: bool
    model: str
    messages: Sequence[Message] | None
    text: str | None
    ids: Sequence[int] | None
    max_tokens: int | None
    max_tokens_param: str
    sampling: Sampling
    stop: list[str]
    stop_token_ids: list[int]
    grammar: Grammar | None
    grammar_param: str  # what the client called it
    ignore_eos: bool
    stream: bool
    include_usage: bool
    klass: str

    @property
    def service_tier(self) -> str:
        return "flex" if self.klass == "batch" else "default"


def chat_validate(body: ChatBody) -> Generation:
    """Raises ApiError."""
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise invalid("max_completion_tokens", "must not be given together with max_tokens")
    if not body.messages:
        raise invalid("messages", "must not be empty")
    if len(body.messages) > MAX_MESSAGES:  # looking at each takes a microsecond of everybody's time
        raise invalid("messages", f"must hold at most {MAX_MESSAGES} messages")
    messages = [_message(message, f"messages[{index}]") for index, message in enumerate(body.messages)]
    param = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    return _generation(body, param, messages=messages)


def completion_validate(body: CompletionBody) -> Generation:
    """Raises ApiError."""
    prompt: str | Sequence[str | int | list[int]] = body.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return _generation(body, "max_tokens", text=prompt)
    ids = [token for token in prompt if isinstance(token, int)]
    if len(ids) != len(prompt):
        raise ApiError("unsupported_parameter", "only one prompt per request is supported", param="prompt")
    if not ids:
        raise invalid("prompt", "must not be empty")
    return _generation(body, "max_tokens", ids=ids)


def _generation(
    body: GenerationBody,
    max_tokens_param: str,
    *,
    messages: list[Message] | None = None,
    text: str | None = None,
    ids: list[int] | None = None,
) -> Generation:
    _unsupported_refuse(body)
    if not 0 < len(body.model) <= _MAX_MODEL_CHARACTERS:
        raise invalid("model", f"must have 1 to {_MAX_MODEL_CHARACTERS} characters")
    max_tokens: int | None = getattr(body, max_tokens_param)
    if max_tokens is not None and max_tokens < 1:
        raise invalid(max_tokens_param, f"must be at least 1, not {max_tokens}")
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options", "is only allowed when stream is true")
    if body.service_tier is not None and body.service_tier not in _TIERS:
        raise invalid("service_tier", f"must be one of {', '.join(_TIERS)}")
    grammar_param, grammar = grammar_validate(body)
    return Generation(
        is_chat=messages is not None,
        model=body.model,
        messages=messages,
        text=text,
        ids=ids,
        max_tokens=max_tokens,
        max_tokens_param=max_tokens_param,
        sampling=sampling_validate(body),
        stop=_stop(body.stop),
        stop_token_ids=stop_token_ids_validate(body.stop_token_ids),
        grammar=grammar,
        grammar_param=grammar_param,
        ignore_eos=bool(body.ignore_eos),
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        klass=_TIERS[body.service_tier or "auto"],
    )


def _stop(stop: str | list[str] | None) -> list[str]:
    strings = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if len(strings) > MAX_STOP_STRINGS:
        raise invalid("stop", f"must hold at most {MAX_STOP_STRINGS} strings")
    if any(not 0 < len(string) <= MAX_STOP_CHARACTERS for string in strings):
        raise invalid("stop", f"must hold strings of 1 to {MAX_STOP_CHARACTERS} characters")
    return strings


def _message(message: ChatMessage, param: str) -> Message:
    _unsupported_refuse(message, f"{param}.")
    role = _ROLES.get(message.role)
    if role is None:
        code = "unsupported_parameter" if message.role in ("tool", "function") else "invalid_value"
        raise ApiError(code, f"role {message.role!r} is not supported", param=f"{param}.role")
    content = message.content
    if content is None and role == "assistant":
        content = message.refusal
    if content is None:
        raise ApiError("missing_required_parameter", "a message needs content", param=f"{param}.content")
    if isinstance(content, str):
        return Message(role, content)
    texts = []
    for index, part in enumerate(content):
        is_refusal = part.type == "refusal" and role == "assistant"
        if part.type != "text" and not is_refusal:
            where = f"{param}.content[{index}].type"
            raise ApiError("unsupported_parameter", f"content of type {part.type!r}", param=where)
        text = part.refusal if is_refusal else part.text
        if text is None:
            where = f"{param}.content[{index}].{part.type}"
            raise ApiError("missing_required_parameter", f"a {part.type} part needs {part.type}", param=where)
        texts.append(text)
    return Message(role, "".join(texts))


def _unsupported_refuse(struct: msgspec.Struct, prefix: str = "") -> None:
    for name in struct.__struct_fields__:
        if name in NEUTRAL and not is_neutral(name, getattr(struct, name)):
            param = prefix + name
            raise ApiError("unsupported_parameter", f"{param} is not supported with this value", param=param)
