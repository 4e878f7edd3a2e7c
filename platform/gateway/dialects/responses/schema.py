"""The body of POST /v1/responses: the stateless subset, as its decoder checks it and the reference shows it.

A parameter is a field here or an error. `translation` refuses what no type can: it says why.
"""

from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, Meta

from gateway.dialects.openai.neutral import (
    Ignored,
    OnlyEmptyList,
    OnlyFalse,
    OnlyMedium,
    OnlyNone,
    OnlyNoneOrAuto,
    OnlyNull,
)
from gateway.dialects.openai.sampling_ranges import (
    MinP,
    OutputPenalty,
    RepetitionPenalty,
    Seed,
    Temperature,
    TopK,
    TopP,
)
from gateway.dialects.openai.schema import CacheSalt, Logprobs, Model

MAX_TEXT_CHARACTERS = 512
MAX_METADATA_PAIRS = 16
MAX_METADATA_KEY_CHARACTERS = 64
MAX_ITEMS = 32_768  # looking at each takes a microsecond of everybody's time
MAX_GRAMMAR_CHARACTERS = 64 * 1024
MAX_TOKEN_COUNT = (1 << 31) - 1
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
MESSAGE_PARTS = ("input_text", "output_text", "text", "refusal")

Include = Literal[
    "message.output_text.logprobs",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
ServiceTier = Literal["auto", "default", "fast", "flex", "priority", "scale"]
Label = Annotated[str, Meta(max_length=MAX_TEXT_CHARACTERS)]
Metadata = Annotated[
    dict[
        Annotated[str, Meta(max_length=MAX_METADATA_KEY_CHARACTERS)],
        Annotated[str, Meta(max_length=MAX_TEXT_CHARACTERS)],
    ],
    Meta(max_length=MAX_METADATA_PAIRS),
]
TokenCount = Annotated[int, Meta(ge=1, le=MAX_TOKEN_COUNT)]


OnlyDisabled = (
    Annotated[msgspec.Raw, Meta(extra_json_schema={"enum": [None, "disabled"]})] | msgspec.UnsetType
)


class ResponsesContentPart(msgspec.Struct):
    """Parts come back as they were received, so their other fields are let through."""

    type: Annotated[str, Meta(extra_json_schema={"enum": list(MESSAGE_PARTS)})]
    text: str | None = None
    refusal: str | None = None


class ResponsesInputItem(msgspec.Struct):
    """A message. Items come back as they were received, so their other fields are let through."""

    role: Annotated[str, Meta(extra_json_schema={"enum": list(ROLES)})] = ""
    content: str | list[ResponsesContentPart] | None = None
    type: Annotated[str | None, Meta(extra_json_schema={"enum": ["message", None]})] = None


class ResponsesTextFormat(msgspec.Struct):
    """`strict` and `description` change nothing here: the schema is always followed."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Meta(max_length=64)] | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class ResponsesText(msgspec.Struct, forbid_unknown_fields=True):
    format: ResponsesTextFormat | None = None
    verbosity: OnlyMedium = UNSET


class ResponsesReasoning(msgspec.Struct, forbid_unknown_fields=True):
    """Accepted only where it asks for none."""

    effort: OnlyNone = UNSET
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesStreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_obfuscation: bool | None = None  # accepted without effect: padding hides nothing behind TLS here


class ResponsesBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: Model
    input: str | Annotated[list[ResponsesInputItem], Meta(min_length=1, max_length=MAX_ITEMS)]
    instructions: str | None = None
    max_output_tokens: TokenCount | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    text: ResponsesText | None = None
    include: Annotated[list[Include], Meta(max_length=len(get_args(Include)))] | None = None
    top_logprobs: Logprobs | None = None
    service_tier: ServiceTier | None = None
    metadata: Metadata | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    parallel_tool_calls: bool | None = None
    tools: list[dict[str, Any]] | None = None
    cache_salt: CacheSalt | None = None
    resumable: bool | None = None

    # vLLM's names
    seed: Seed | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    presence_penalty: OutputPenalty | None = None
    frequency_penalty: OutputPenalty | None = None
    ignore_eos: bool | None = None

    # Without effect here
    store: Ignored = UNSET
    max_tool_calls: Ignored = UNSET
    prompt_cache_retention: Ignored = UNSET
    prompt_cache_options: Ignored = UNSET

    # Accepted only where they ask for nothing
    background: OnlyFalse = UNSET
    context_management: OnlyEmptyList = UNSET
    conversation: OnlyNull = UNSET
    moderation: OnlyNull = UNSET
    previous_response_id: OnlyNull = UNSET
    prompt: OnlyNull = UNSET
    reasoning: ResponsesReasoning | None = None
    tool_choice: OnlyNoneOrAuto = UNSET
    truncation: OnlyDisabled = UNSET
