"""A message of the Messages API, whole and as events."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

StopReason = Literal["end_turn", "max_tokens", "stop_sequence"]


class TextBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="text"):
    text: str
    citations: None


class MessageUsage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was read from the cache is not among the `input_tokens`."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    service_tier: Literal["standard"] | UnsetType = UNSET


class AnswerMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="message"):
    id: str
    role: Literal["assistant"]
    model: str
    content: list[TextBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: None
    usage: MessageUsage


class TokenCount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    input_tokens: int


class MessageStart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="message_start"):
    message: AnswerMessage


class ContentBlockStart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="content_block_start"):
    index: int
    content_block: TextBlock


class Ping(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ping"): ...


class BlockDelta(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="text_delta"):
    text: str


class ContentBlockDelta(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="content_block_delta"):
    index: int
    delta: BlockDelta


class ContentBlockStop(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="content_block_stop"):
    index: int


class StopDelta(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="message_delta"):
    delta: StopDelta
    usage: MessageUsage


class MessageStop(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="message_stop"): ...


MessageEvent = (
    MessageStart
    | ContentBlockStart
    | Ping
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
)
