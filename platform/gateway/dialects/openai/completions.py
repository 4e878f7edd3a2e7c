"""`POST /v1/completions`."""

from collections.abc import Sequence
from typing import Any

import msgspec

from gateway import sse
from gateway.answer_parts import ChoiceEnd, Head, PromptRow
from gateway.dialects.base import Ask, Dialect, Event, Options, Renderer, TokenText, Whole, WholeChoice
from gateway.dialects.openai.decoding import decode
from gateway.dialects.openai.logprobs import (
    TextOffsets,
    before_the_stop,
    completion_logprobs,
    prompt_logprobs,
)
from gateway.dialects.openai.prompts import prompts_validate
from gateway.dialects.openai.refusals import invalid
from gateway.dialects.openai.rendering import OpenAIOptions, OpenAIRenderer, finish
from gateway.dialects.openai.schema import CompletionBody
from gateway.dialects.openai.validation import generation_validate, include_usage
from gateway.errors import ApiError
from gpuworker.wire.messages import TokenLogprobs

_DECODER = msgspec.json.Decoder(CompletionBody)


class CompletionOptions(OpenAIOptions, frozen=True, kw_only=True):
    echo: bool = False


class CompletionRenderer(OpenAIRenderer):
    """An echoed prompt's text is part of each choice's rows; with log probabilities there is one choice for
    each prompt, and the prompt's come before its own."""

    id_prefix = "cmpl-"
    chunk_object = "text_completion"
    whole_object = "text_completion"

    def __init__(self, options: CompletionOptions, head: Head, tokens: TokenText) -> None:
        super().__init__(options, head, tokens)
        self._echoes_logprobs = options.echo and self._wants_logprobs
        self._offsets: dict[int, TextOffsets] = {}  # of the choices that have begun

    def prompt_delta(self, row: PromptRow) -> list[Event]:
        """Before the text, so that no event is as large as a whole prompt's."""
        if not self._echoes_logprobs:
            return []
        logprobs = self._logprobs(row.prompt, row.tokens)
        return [Event(sse.json_line(self._chunk([self._text_choice(row.prompt, "", logprobs)])))]

    def _logprobs(self, choice: int, rows: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        offsets, first = self._offsets.get(choice), None
        if offsets is None:
            offsets = self._offsets[choice] = TextOffsets(self._tokens)
            first = self._head.first_tokens[choice] if self._echoes_logprobs else None
        if not rows and first is None:
            return None
        return completion_logprobs(rows, self._tokens, self._options.logprobs, offsets, first)

    def _text_choice(self, choice: int, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return {"index": choice, "text": text, "logprobs": logprobs, "finish_reason": None}

    def _finish_choice(self, end: ChoiceEnd, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return self._text_choice(end.choice, "", logprobs) | finish(end)

    def _whole_choices(self, whole: Whole) -> list[dict[str, Any]]:
        return [self._whole_choice(whole, choice) for choice in whole.choices]

    def _whole_choice(self, whole: Whole, choice: WholeChoice) -> dict[str, Any]:
        number = choice.end.choice
        logprobs = None
        if self._wants_logprobs:
            prompt = whole.prompt_logprobs[number] if self._echoes_logprobs else []
            first = self._head.first_tokens[number : number + 1] if self._echoes_logprobs else ()
            echoed = [*first, *(row.token for row in prompt)]
            logprobs = self._logprobs(number, [*prompt, *before_the_stop(choice, self._tokens, echoed)])
        object_ = self._text_choice(number, choice.text, logprobs) | finish(choice.end)
        top = self._options.prompt_logprobs
        if top >= 0:
            object_["prompt_logprobs"] = prompt_logprobs(whole.prompt_logprobs[number], self._tokens, top)
        return object_


class CompletionDialect(Dialect):
    name = "openai.completions"
    options_type = CompletionOptions

    def parse(self, body: bytes) -> Ask:
        return completion_translate(decode(body, _DECODER))

    def renderer(self, options: Options, head: Head, tokens: TokenText) -> Renderer:
        assert isinstance(options, CompletionOptions)
        return CompletionRenderer(options, head, tokens)

    def error(self, error: ApiError, request_id: str) -> tuple[int, bytes]:
        return error.status, error.envelope()


def completion_translate(body: CompletionBody) -> Ask:
    """Raises ApiError."""
    echo = bool(body.echo)
    logprobs = -1 if body.logprobs is None else body.logprobs
    wanted = -1 if body.prompt_logprobs is None else body.prompt_logprobs
    if (body.n or 1) > 1 and (wanted >= 0 or (echo and logprobs >= 0)):
        raise invalid("n", "must be 1 where log probabilities of the prompt are asked for")
    generation = generation_validate(
        body,
        prompts_validate(body.prompt),
        prompt_param="prompt",
        max_tokens_param="max_tokens",
        logprobs=logprobs,
        echo=echo,
    )
    options = CompletionOptions(
        include_usage=include_usage(body), logprobs=logprobs, prompt_logprobs=wanted, echo=echo
    )
    return Ask(generation, options)


COMPLETIONS = CompletionDialect()
