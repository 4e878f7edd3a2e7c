"""The JSON bodies of the Messages API as msgspec structs. A parameter is a field here or an error.

Names and ranges are Anthropic's; `conversation` and `messages` have the rules that a type cannot say.
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from gateway.dialects.openai.neutral import Ignored, OnlyEmptyList, OnlyNull
from gateway.dialects.openai.sampling_ranges import TopP
from gateway.dialects.openai.schema import MAX_MESSAGES, Model, StopString

MAX_STOP_SEQUENCES = 16  # the engine's bound

OnlyDisabled = Annotated[Raw, Meta(extra_json_schema={"enum": [None, {"type": "disabled"}]})] | UnsetType
OnlyStandard = Annotated[Raw, Meta(extra_json_schema={"enum": [None, "standard"]})] | UnsetType

Role = Annotated[str, Meta(extra_json_schema={"enum": ["user", "assistant", "system"]})]
Temperature = Annotated[float, Meta(ge=0, le=1)]
TopK = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]  # 0: off
ServiceTier = Annotated[str, Meta(extra_json_schema={"enum": ["auto", "standard_only"]})]


class Block(msgspec.Struct):
    """Clients send back whole blocks they received, so unknown fields of one are let through. Its
    `cache_control` has no effect: prefixes are cached wherever they repeat."""

    type: str
    text: str | None = None


class Turn(msgspec.Struct):
    role: Role
    content: str | list[Block]


class OutputFormat(msgspec.Struct, forbid_unknown_fields=True):
    type: Annotated[str, Meta(extra_json_schema={"enum": ["json_schema"]})]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True):
    format: OutputFormat | None = None
    effort: OnlyNull = UNSET


class ToolChoice(msgspec.Struct):
    type: Annotated[str, Meta(extra_json_schema={"enum": ["none", "auto"]})]


class PromptBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What both endpoints share."""

    model: Model
    messages: Annotated[list[Turn], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | list[Block] | None = None
    output_config: OutputConfig | None = None
    tool_choice: ToolChoice | None = None

    cache_control: Ignored = UNSET
    user_profile_id: Ignored = UNSET

    tools: OnlyEmptyList = UNSET  # anything with a `tool_choice` of type "none"
    thinking: OnlyDisabled = UNSET
    speed: OnlyStandard = UNSET


class MessagesBody(PromptBody, forbid_unknown_fields=True, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=1)]
    stop_sequences: Annotated[list[StopString], Meta(max_length=MAX_STOP_SEQUENCES)] | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    service_tier: ServiceTier | None = None

    metadata: Ignored = UNSET

    container: OnlyNull = UNSET
    diagnostics: OnlyNull = UNSET
    inference_geo: OnlyNull = UNSET


MESSAGES_BODY = msgspec.json.Decoder(MessagesBody)
COUNT_TOKENS_BODY = msgspec.json.Decoder(PromptBody)
