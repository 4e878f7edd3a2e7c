"""The three envelopes around an error."""

import msgspec

from gateway.errors import LimitDetail


class ErrorUsage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of the request that is spoken of, where its answer cannot be had."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ErrorDetail(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str
    limit: LimitDetail | msgspec.UnsetType = msgspec.UNSET
    usage: ErrorUsage | msgspec.UnsetType = msgspec.UNSET


class Error(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """As OpenAI says it, and everything outside the other two APIs."""

    error: ErrorDetail


class MessagesErrorDetails(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    error_code: str
    param: str | None
    limit: LimitDetail | msgspec.UnsetType = msgspec.UNSET
    usage: ErrorUsage | msgspec.UnsetType = msgspec.UNSET


class MessagesErrorDetail(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    type: str
    message: str
    details: MessagesErrorDetails


class MessagesError(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="error"):
    """As Anthropic says it."""

    error: MessagesErrorDetail
    request_id: str


class GenerateError(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """As text-generation-inference says it."""

    error: str
    error_type: str
    limit: LimitDetail | msgspec.UnsetType = msgspec.UNSET
    usage: ErrorUsage | msgspec.UnsetType = msgspec.UNSET
