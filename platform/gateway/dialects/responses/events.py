"""The events of a streamed response, in the order in which they are sent."""

import msgspec

from gateway.dialects.responses.objects import (
    Response,
    ResponsesLogprob,
    ResponsesOutputMessage,
    ResponsesOutputText,
)
from gateway.errors import LimitDetail


class ResponsesEvent(msgspec.Struct, frozen=True, kw_only=True):
    sequence_number: int


class Created(ResponsesEvent, frozen=True, kw_only=True, tag="response.created"):
    response: Response


class InProgress(ResponsesEvent, frozen=True, kw_only=True, tag="response.in_progress"):
    response: Response


class OutputItemAdded(ResponsesEvent, frozen=True, kw_only=True, tag="response.output_item.added"):
    item: ResponsesOutputMessage
    output_index: int = 0


class ContentEvent(ResponsesEvent, frozen=True, kw_only=True):
    """About the only part of the only item."""

    item_id: str
    output_index: int = 0
    content_index: int = 0


class ContentPartAdded(ContentEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    part: ResponsesOutputText


class TextDelta(ContentEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    delta: str
    logprobs: list[ResponsesLogprob]


class TextDone(ContentEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    text: str
    logprobs: list[ResponsesLogprob]


class ContentPartDone(ContentEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    part: ResponsesOutputText


class OutputItemDone(ResponsesEvent, frozen=True, kw_only=True, tag="response.output_item.done"):
    item: ResponsesOutputMessage
    output_index: int = 0


class Completed(ResponsesEvent, frozen=True, kw_only=True, tag="response.completed"):
    response: Response


class Incomplete(ResponsesEvent, frozen=True, kw_only=True, tag="response.incomplete"):
    response: Response


class ErrorEventDetail(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str
    limit: LimitDetail | msgspec.UnsetType = msgspec.UNSET


class ErrorEvent(ResponsesEvent, frozen=True, kw_only=True, tag="error"):
    """Says it twice: `error` makes the openai clients raise, the flat fields are what OpenAI documents."""

    code: str
    message: str
    param: str | None
    error: ErrorEventDetail


class Failed(ResponsesEvent, frozen=True, kw_only=True, tag="response.failed"):
    response: Response


AnyResponsesEvent = (
    Created
    | InProgress
    | OutputItemAdded
    | ContentPartAdded
    | TextDelta
    | TextDone
    | ContentPartDone
    | OutputItemDone
    | Completed
    | Incomplete
    | ErrorEvent
    | Failed
)
