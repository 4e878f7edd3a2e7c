"""`POST /v1/chat/completions`."""

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway import sse
from gateway.answer_parts import ChoiceEnd, Head
from gateway.dialects.base import Ask, Dialect, Event, Options, Renderer, TokenText, Whole
from gateway.dialects.openai.decoding import decode
from gateway.dialects.openai.logprobs import before_the_stop, chat_logprobs, prompt_logprobs
from gateway.dialects.openai.messages import message_validate
from gateway.dialects.openai.refusals import invalid
from gateway.dialects.openai.rendering import OpenAIOptions, OpenAIRenderer, finish
from gateway.dialects.openai.schema import ChatBody
from gateway.dialects.openai.tools import tools_refuse
from gateway.dialects.openai.validation import generation_validate, include_usage
from gateway.errors import ApiError
from gateway.generation import Prompt
from gpuworker.wire.messages import TokenLogprobs

_DECODER = msgspec.json.Decoder(ChatBody)


class ChatRenderer(OpenAIRenderer):
    id_prefix = "chatcmpl-"
    chunk_object = "chat.completion.chunk"
    whole_object = "chat.completion"

    def opening(self) -> list[Event]:
        role = {"role": "assistant", "content": ""}
        chunks = [self._chunk([_delta(choice, role)]) for choice in range(self._head.choices)]
        return [Event(sse.json_line(chunk)) for chunk in chunks]

    def _logprobs(self, choice: int, rows: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        if not rows:
            return None
        return chat_logprobs(rows, self._tokens, self._options.logprobs)

    def _text_choice(self, choice: int, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return _delta(choice, {"content": text}, logprobs)

    def _finish_choice(self, end: ChoiceEnd, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return _delta(end.choice, {}, logprobs) | finish(end)

    def _whole_choices(self, whole: Whole) -> list[dict[str, Any]]:
        choices = []
        for choice in whole.choices:
            logprobs = None
            if self._wants_logprobs:
                logprobs = self._logprobs(choice.end.choice, before_the_stop(choice, self._tokens))
            message = {"role": "assistant", "content": choice.text, "refusal": None}
            choices.append(
                {"index": choice.end.choice, "message": message, "logprobs": logprobs} | finish(choice.end)
            )
        return choices

    def _whole_extras(self, whole: Whole) -> dict[str, Any]:
        top = self._options.prompt_logprobs
        if top < 0:
            return {}
        return {"prompt_logprobs": prompt_logprobs(whole.prompt_logprobs[0], self._tokens, top)}


class ChatDialect(Dialect):
    name = "openai.chat"
    options_type = OpenAIOptions

    def parse(self, body: bytes) -> Ask:
        return chat_translate(decode(body, _DECODER))

    def renderer(self, options: Options, head: Head, tokens: TokenText) -> Renderer:
        assert isinstance(options, OpenAIOptions)
        return ChatRenderer(options, head, tokens)

    def error(self, error: ApiError, request_id: str) -> tuple[int, bytes]:
        return error.status, error.envelope()


def chat_translate(body: ChatBody) -> Ask:
    """Raises ApiError."""
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise invalid("max_completion_tokens", "must not be given together with max_tokens")
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs", "is only allowed when logprobs is true")
    logprobs = (body.top_logprobs or 0) if body.logprobs else -1
    messages = tuple(
        message_validate(message, f"messages[{index}]") for index, message in enumerate(body.messages)
    )
    generation = generation_validate(
        body,
        (Prompt(messages=messages),),
        prompt_param="messages",
        max_tokens_param="max_tokens" if body.max_completion_tokens is None else "max_completion_tokens",
        logprobs=logprobs,
        exempt=tools_refuse(body),
    )
    return Ask(
        generation,
        OpenAIOptions(
            include_usage=include_usage(body),
            logprobs=logprobs,
            prompt_logprobs=-1 if body.prompt_logprobs is None else body.prompt_logprobs,
        ),
    )


def _delta(choice: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": None}


CHAT = ChatDialect()
