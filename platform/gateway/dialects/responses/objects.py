"""The objects of the Responses API that a client receives: the response, its parts, and the stream's events.

Nothing of the prompt is repeated in them: `instructions` is always null.
"""

from typing import Any, Literal

import msgspec

Status = Literal["in_progress", "completed", "incomplete", "failed"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class ResponsesTopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    bytes: list[int]
    logprob: float


class ResponsesLogprob(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[ResponsesTopLogprob]


class ResponsesOutputText(msgspec.Struct, frozen=True, kw_only=True, tag="output_text"):
    text: str
    annotations: list[dict[str, Any]] = []
    logprobs: list[ResponsesLogprob] = []


class ResponsesOutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    id: str
    status: ItemStatus
    content: list[ResponsesOutputText]
    role: Literal["assistant"] = "assistant"


class ResponsesInputDetails(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class ResponsesOutputDetails(msgspec.Struct, frozen=True, kw_only=True):
    reasoning_tokens: int = 0


class ResponsesUsage(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int
    input_tokens_details: ResponsesInputDetails
    output_tokens: int
    output_tokens_details: ResponsesOutputDetails
    total_tokens: int


class ResponsesIncomplete(msgspec.Struct, frozen=True, kw_only=True):
    reason: Literal["max_output_tokens", "content_filter"]


class ResponsesError(msgspec.Struct, frozen=True, kw_only=True):
    """`code` is one of OpenAI's few; the `error` event before it says ours."""

    code: Literal["server_error", "rate_limit_exceeded"]
    message: str


class ResponsesTextConfig(msgspec.Struct, frozen=True, kw_only=True):
    format: dict[str, Any] | msgspec.Raw
    verbosity: Literal["medium"] = "medium"


class ResponsesNoReasoning(msgspec.Struct, frozen=True, kw_only=True):
    effort: None = None
    summary: None = None


class Response(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    created_at: int
    model: str
    status: Status
    output: list[ResponsesOutputMessage]
    usage: ResponsesUsage | None
    error: ResponsesError | None
    incomplete_details: ResponsesIncomplete | None
    temperature: float
    top_p: float
    max_output_tokens: int | None
    top_logprobs: int
    service_tier: Literal["default", "flex"]
    text: ResponsesTextConfig
    metadata: dict[str, str]
    parallel_tool_calls: bool
    tool_choice: Literal["auto", "none"]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    background: Literal[False] = False
    instructions: None = None
    max_tool_calls: None = None
    previous_response_id: None = None
    reasoning: ResponsesNoReasoning = ResponsesNoReasoning()
    store: Literal[False] = False
    tools: list[dict[str, Any]] = []
    truncation: Literal["disabled"] = "disabled"
