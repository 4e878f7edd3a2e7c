"""Puts one answer into the words of the Responses API: the whole object, or the events that build it up."""

from collections.abc import Sequence
from uuid import UUID

import msgspec

from gateway import sse
from gateway.answer_parts import ChoiceEnd, Head, Row, Usage
from gateway.dialects.base import Event, Options, Renderer, TokenText, Whole
from gateway.dialects.openai.logprobs import before_the_stop
from gateway.dialects.responses import events
from gateway.dialects.responses.logprobs import logprobs_render
from gateway.dialects.responses.objects import (
    ItemStatus,
    Response,
    ResponsesError,
    ResponsesIncomplete,
    ResponsesInputDetails,
    ResponsesLogprob,
    ResponsesOutputDetails,
    ResponsesOutputMessage,
    ResponsesOutputText,
    ResponsesTextConfig,
    ResponsesUsage,
    Status,
)
from gateway.errors import ApiError
from gpuworker.wire.messages import TokenLogprobs

_ENDED: dict[str, tuple[Status, ResponsesIncomplete | None]] = {
    "stop": ("completed", None),
    "length": ("incomplete", ResponsesIncomplete(reason="max_output_tokens")),
    "content_filter": ("incomplete", ResponsesIncomplete(reason="content_filter")),
}
_NO_NUMBER = -1  # where the number of a delta goes
_OPENING_EVENTS = 4


class ResponsesOptions(Options, frozen=True, kw_only=True):
    """What the response repeats of its request. Never the prompt: options are kept with a stored answer."""

    temperature: float
    top_p: float
    max_output_tokens: int | None
    top_logprobs: int
    format: str  # JSON of `text.format`
    metadata: dict[str, str]
    parallel_tool_calls: bool
    tool_choice: str
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None


class ResponsesRenderer(Renderer):
    """The text is collected for the last events; it is bounded as the answer is."""

    delta_name = b"response.output_text.delta"

    def __init__(self, options: ResponsesOptions, head: Head, tokens: TokenText) -> None:
        self._tokens = tokens
        identity = UUID(head.request_id).hex
        self._item_id = f"msg_{identity}"
        self._number = _OPENING_EVENTS  # the first row may come before `opening` is called
        self._is_open = False
        self._texts: list[str] = []
        self._logprobs: list[ResponsesLogprob] = []  # of the text that was sent
        self._held: list[TokenLogprobs] = []  # until their text is shown, or never, behind a stop string
        self._response = Response(
            id=f"resp_{identity}",
            created_at=head.created,
            model=head.model,
            status="in_progress",
            output=[],
            usage=None,
            error=None,
            incomplete_details=None,
            temperature=options.temperature,
            top_p=options.top_p,
            max_output_tokens=options.max_output_tokens,
            top_logprobs=options.top_logprobs,
            service_tier="flex" if head.klass == "batch" else "default",
            text=ResponsesTextConfig(format=msgspec.Raw(options.format.encode())),
            metadata=options.metadata,
            parallel_tool_calls=options.parallel_tool_calls,
            tool_choice="none" if options.tool_choice == "none" else "auto",
            user=options.user,
            safety_identifier=options.safety_identifier,
            prompt_cache_key=options.prompt_cache_key,
        )
        frame = sse.JsonFrame(
            events.TextDelta(
                sequence_number=_NO_NUMBER, item_id=self._item_id, delta=sse.JsonFrame.TEXT, logprobs=[]
            )
        )
        self._before_number, self._before_text = frame.prefix.split(b"%d" % _NO_NUMBER)
        self._after_text = frame.suffix

    def opening(self) -> list[Event]:
        self._is_open = True
        part = ResponsesOutputText(text="")
        return [
            _event(events.Created(sequence_number=0, response=self._response)),
            _event(events.InProgress(sequence_number=1, response=self._response)),
            _event(events.OutputItemAdded(sequence_number=2, item=self._item("in_progress", []))),
            _event(events.ContentPartAdded(sequence_number=3, item_id=self._item_id, part=part)),
        ]

    def delta(self, row: Row) -> bytes:
        if row.logprobs:
            self._held += row.logprobs
        if not row.text:
            return b""
        number = self._number
        self._number = number + 1
        self._texts.append(row.text)
        if self._held:
            logprobs = self._unheld()
            return sse.json_line(
                events.TextDelta(
                    sequence_number=number, item_id=self._item_id, delta=row.text, logprobs=logprobs
                )
            )
        text = sse.json_string(row.text)
        return b"%b%d%b%b%b" % (self._before_number, number, self._before_text, text, self._after_text)

    def closing(self, ends: Sequence[ChoiceEnd], usage: Usage) -> list[Event]:
        (end,) = ends
        if not isinstance(end.stopped_by, str):
            self._unheld()
        text, number, name = "".join(self._texts), self._number, self._item_id
        response = self._ended(text, self._logprobs, end, usage)
        item = response.output[0]
        last = events.Completed if response.status == "completed" else events.Incomplete
        return [
            _event(events.TextDone(sequence_number=number, item_id=name, text=text, logprobs=self._logprobs)),
            _event(events.ContentPartDone(sequence_number=number + 1, item_id=name, part=item.content[0])),
            _event(events.OutputItemDone(sequence_number=number + 2, item=item)),
            _event(last(sequence_number=number + 3, response=response)),
        ]

    def failed(self, error: ApiError) -> list[Event]:
        """The openai clients raise at the first of the two; others read the second."""
        number = self._number if self._is_open else 0
        part = ResponsesOutputText(text="".join(self._texts), logprobs=self._logprobs)
        response = msgspec.structs.replace(
            self._response,
            status="failed",
            output=[self._item("incomplete", [part])] if self._is_open else [],
            error=ResponsesError(
                code="rate_limit_exceeded" if error.status == 429 else "server_error",
                message=error.message,
            ),
        )
        return [
            _event(
                events.ErrorEvent(
                    sequence_number=number,
                    code=error.code,
                    message=error.message,
                    param=error.param,
                    error=events.ErrorEventDetail(
                        message=error.message,
                        type=error.type,
                        param=error.param,
                        code=error.code,
                        limit=msgspec.UNSET if error.limit is None else error.limit,
                    ),
                )
            ),
            _event(events.Failed(sequence_number=number + 1, response=response)),
        ]

    def whole(self, whole: Whole) -> bytes:
        (choice,) = whole.choices
        logprobs = logprobs_render(before_the_stop(choice, self._tokens), self._tokens)
        return msgspec.json.encode(self._ended(choice.text, logprobs, choice.end, whole.usage))

    def _unheld(self) -> list[ResponsesLogprob]:
        logprobs = logprobs_render(self._held, self._tokens)
        self._held.clear()
        self._logprobs += logprobs
        return logprobs

    def _ended(self, text: str, logprobs: list[ResponsesLogprob], end: ChoiceEnd, usage: Usage) -> Response:
        status, incomplete = _ENDED[end.reason]
        part = ResponsesOutputText(text=text, logprobs=logprobs)
        return msgspec.structs.replace(
            self._response,
            status=status,
            output=[self._item("completed" if incomplete is None else "incomplete", [part])],
            incomplete_details=incomplete,
            usage=ResponsesUsage(
                input_tokens=usage.prompt_tokens,
                input_tokens_details=ResponsesInputDetails(cached_tokens=usage.cached_tokens),
                output_tokens=usage.output_tokens,
                output_tokens_details=ResponsesOutputDetails(),
                total_tokens=usage.prompt_tokens + usage.output_tokens,
            ),
        )

    def _item(self, status: ItemStatus, parts: list[ResponsesOutputText]) -> ResponsesOutputMessage:
        return ResponsesOutputMessage(id=self._item_id, status=status, content=parts)


def _event(event: events.ResponsesEvent) -> Event:
    return Event(sse.json_line(event), str(event.__struct_config__.tag).encode())
