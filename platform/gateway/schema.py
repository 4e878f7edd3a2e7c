"""The JSON bodies of /v1 as msgspec structs, and the translation of decoding errors to the client's words.

A parameter is either a field here or an error: nothing that changes the output is ignored. The fields typed
`Ignored` are accepted without effect; `gateway.validation` refuses the `Unsupported` ones when they ask for
something.
"""

import re
from typing import Any, TypeVar

import msgspec

from gateway.errors import ApiError

Ignored = msgspec.Raw
Unsupported = msgspec.Raw
_ABSENT = msgspec.Raw(b"null")


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # accepted without effect: padding hides nothing behind TLS here


class JsonSchema(msgspec.Struct):
    """`strict` and `description` change nothing here: the schema is always followed."""

    name: str | None = None
    schema: dict[str, Any] | None = None


class ResponseFormat(msgspec.Struct):
    type: str
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's name for a grammar."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    json_object: bool | None = None


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None


class ChatMessage(msgspec.Struct):
    """Clients send back whole messages they received, so unknown fields of a message are let through."""

    role: str
    content: str | list[ContentPart] | None = None
    refusal: str | None = None
    tool_calls: Unsupported = _ABSENT
    function_call: Unsupported = _ABSENT
    audio: Unsupported = _ABSENT


class GenerationBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What both endpoints share."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    service_tier: str | None = None
    ignore_eos: bool | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    logit_bias: dict[str, float] | None = None
    stop_token_ids: list[int] | None = None
    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    structured_outputs: StructuredOutputs | None = None

    user: Ignored = _ABSENT
    safety_identifier: Ignored = _ABSENT
    metadata: Ignored = _ABSENT
    store: Ignored = _ABSENT
    prompt_cache_key: Ignored = _ABSENT
    prompt_cache_retention: Ignored = _ABSENT
    prediction: Ignored = _ABSENT
    parallel_tool_calls: Ignored = _ABSENT

    n: Unsupported = _ABSENT
    logprobs: Unsupported = _ABSENT


class ChatBody(GenerationBody, forbid_unknown_fields=True, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None

    top_logprobs: Unsupported = _ABSENT
    tools: Unsupported = _ABSENT
    tool_choice: Unsupported = _ABSENT
    functions: Unsupported = _ABSENT
    function_call: Unsupported = _ABSENT
    modalities: Unsupported = _ABSENT
    audio: Unsupported = _ABSENT
    reasoning_effort: Unsupported = _ABSENT
    verbosity: Unsupported = _ABSENT
    web_search_options: Unsupported = _ABSENT


class CompletionBody(GenerationBody, forbid_unknown_fields=True, kw_only=True):
    prompt: str | list[str | int | list[int]]

    best_of: Unsupported = _ABSENT
    echo: Unsupported = _ABSENT
    suffix: Unsupported = _ABSENT


# What asks for nothing, so that clients which always send their defaults are served.
NEUTRAL: dict[str, tuple[bytes, ...]] = {
    "n": (b"1",),
    "best_of": (b"1",),
    "logprobs": (b"false",),
    "top_logprobs": (b"0",),
    "tools": (b"[]",),
    "functions": (b"[]",),
    "tool_choice": (b'"none"', b'"auto"'),
    "function_call": (b'"none"', b'"auto"'),
    "modalities": (b'["text"]',),
    "audio": (),
    "reasoning_effort": (b'"none"',),
    "verbosity": (b'"medium"',),
    "web_search_options": (),
    "echo": (b"false",),
    "suffix": (b'""',),
    "tool_calls": (b"[]",),
}

_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")
_LONE_SURROGATE = re.compile(rb"(?<!\\)\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")

Body = TypeVar("Body", bound=GenerationBody)

CHAT = msgspec.json.Decoder(ChatBody)
COMPLETION = msgspec.json.Decoder(CompletionBody)


def decode(data: bytes, decoder: msgspec.json.Decoder[Body]) -> Body:
    """Raises ApiError naming the parameter at fault."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        _json_check(data)  # what is no JSON at all has no parameter at fault
        raise _described(str(error)) from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _malformed(data, error) from None


def _json_check(data: bytes) -> None:
    """Raises ApiError. Skips over the values, so it costs little and goes as deep as the decoder can."""
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _malformed(data, error) from None


def _malformed(data: bytes, error: Exception) -> ApiError:
    if isinstance(error, RecursionError):
        return ApiError("invalid_json", "the JSON is nested too deeply")
    cause = str(error)
    if "surrogate" in cause or ("truncated" in cause and _LONE_SURROGATE.search(data)):
        cause = "a string holds a lone surrogate"  # at its end the decoder takes it for the end of the data
    return ApiError("invalid_json", f"the request body is not valid JSON: {cause}")


def is_neutral(name: str, value: msgspec.Raw) -> bool:
    """Whether an unsupported parameter is absent, null or a default that changes nothing."""
    compact = bytes(value)
    if compact == b"null" or compact in NEUTRAL.get(name, ()):
        return True
    return b"".join(compact.split()) in NEUTRAL.get(name, ())


def _described(message: str) -> ApiError:
    located = _PATH.search(message)
    path = located.group(1) if located else ""
    plain = message[: located.start()] if located else message
    if unknown := _UNKNOWN.search(plain):
        param = _joined(path, unknown.group(1))
        return ApiError("unknown_parameter", f"unknown parameter: {param!r}", param=param)
    if missing := _MISSING.search(plain):
        param = _joined(path, missing.group(1))
        return ApiError("missing_required_parameter", f"missing required parameter: {param!r}", param=param)
    where = f"parameter {path!r}: " if path else ""
    return ApiError("invalid_type", f"{where}{plain}", param=path or None)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
