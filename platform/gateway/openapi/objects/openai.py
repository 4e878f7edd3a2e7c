"""Chat completions and completions, whole and in chunks."""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

FinishReason = Literal["stop", "length"]
Tier = Literal["default", "flex"]


class _Object(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True): ...


class PromptTokensDetails(_Object, frozen=True, forbid_unknown_fields=True, kw_only=True):
    cached_tokens: int
    audio_tokens: int


class CompletionTokensDetails(_Object, frozen=True, forbid_unknown_fields=True, kw_only=True):
    reasoning_tokens: int
    audio_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class CompletionUsage(_Object, frozen=True, forbid_unknown_fields=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class TopLogprob(_Object, frozen=True, forbid_unknown_fields=True, kw_only=True):
    token: str
    bytes: list[int]
    logprob: float


class TokenLogprob(_Object, frozen=True, forbid_unknown_fields=True, kw_only=True):
    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Object, frozen=True, forbid_unknown_fields=True, kw_only=True):
    content: list[TokenLogprob]
    refusal: None


class CompletionLogprobs(_Object, frozen=True, forbid_unknown_fields=True, kw_only=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(_Object, frozen=True, forbid_unknown_fields=True, kw_only=True):
    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class _Common(_Object, frozen=True, forbid_unknown_fields=True, kw_only=True):
    id: str
    created: int
    model: str
    system_fingerprint: str
    service_tier: Tier


class ChatAnswerMessage(_Object, frozen=True, forbid_unknown_fields=True, kw_only=True):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(_Object, frozen=True, forbid_unknown_fields=True, kw_only=True):
    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None


class ChatCompletion(_Common, frozen=True, forbid_unknown_fields=True, kw_only=True):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: CompletionUsage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class ChatDelta(_Object, frozen=True, forbid_unknown_fields=True, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(_Object, frozen=True, forbid_unknown_fields=True, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | UnsetType | None = UNSET


class ChatCompletionChunk(_Common, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`usage` is there only where `stream_options.include_usage` asks for it: null but in the last chunk."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: CompletionUsage | UnsetType | None = UNSET


class CompletionChoice(_Object, frozen=True, forbid_unknown_fields=True, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(_Common, frozen=True, forbid_unknown_fields=True, kw_only=True):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: CompletionUsage


class CompletionChunkChoice(_Object, frozen=True, forbid_unknown_fields=True, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | UnsetType | None = UNSET


class CompletionChunk(_Common, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`usage` is there only where `stream_options.include_usage` asks for it: null but in the last chunk."""

    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]
    usage: CompletionUsage | UnsetType | None = UNSET
