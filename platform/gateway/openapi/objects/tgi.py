"""A generation of text-generation-inference, whole and as events."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.dialects.tgi.tokens import InputToken, Token

FinishReason = Literal["length", "eos_token", "stop_sequence"]


class _Details(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    prefill: list[InputToken]
    tokens: list[Token]
    top_tokens: list[list[Token]] | UnsetType = UNSET


class BestOfSequence(_Details, frozen=True, forbid_unknown_fields=True, kw_only=True):
    generated_text: str


class GenerationDetails(_Details, frozen=True, forbid_unknown_fields=True, kw_only=True):
    best_of_sequences: list[BestOfSequence] | UnsetType = UNSET


class GeneratedText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    generated_text: str
    details: GenerationDetails | UnsetType = UNSET


class StreamDetails(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    finish_reason: FinishReason
    generated_tokens: int
    seed: int | None
    input_length: int


class TokenEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The last one has `generated_text`, and `details` where they were asked for."""

    index: int
    token: Token
    generated_text: str | None
    details: StreamDetails | None
    top_tokens: list[Token] | UnsetType = UNSET
