"""A generation, whole or as TGI's events: one for each token, the last one with the text and the details."""

from collections.abc import Sequence
from typing import Any

from gateway import sse
from gateway.answer_parts import ChoiceEnd, Head, Row, Usage
from gateway.dialects.base import Event, Options, Renderer, TokenText, Whole, WholeChoice
from gateway.dialects.tgi.errors import error_body
from gateway.dialects.tgi.tokens import (
    UNKNOWN,
    InputToken,
    Token,
    input_tokens,
    mean_logprob,
    output_tokens,
    token_make,
    top_tokens,
)
from gateway.errors import ApiError


class GenerateOptions(Options, frozen=True, kw_only=True):
    details: bool
    prefill: bool  # the prompt's tokens are among them
    listed: bool  # a whole answer is the only entry of a list
    sampled: bool
    characters: int  # of the prompt
    top_n_tokens: int = 0
    max_tokens: int | None = None
    before: str = ""  # the prompt, where the full text is wanted


class GenerateRenderer(Renderer):
    """What is known to be the last token waits for the end, as TGI's last event carries both: a special token
    without text, and the last one that was asked for. Other ends have an event of their own, without text."""

    def __init__(self, options: GenerateOptions, head: Head, tokens: TokenText) -> None:
        self._options = options
        self._head = head
        self._tokens = tokens
        self._texts = [options.before]
        self._generated = 0
        self._events = 0
        self._newest = UNKNOWN
        self._held: Token | None = None

    def delta(self, row: Row) -> bytes:
        self._texts.append(row.text)
        self._generated += row.count
        if row.logprobs:
            self._newest = row.logprobs[-1]
        newest = self._newest
        text = row.text
        if not row.count and self._held is not None:  # it was held back behind that token
            text = self._held.text + text
        is_special = not text and self._tokens.is_special(newest.token)
        token = token_make(newest.token, text, newest.logprob, is_special=is_special)
        if is_special or self._generated == self._options.max_tokens:
            self._held = token
            return b""
        self._held = None
        return self._event(token)

    def closing(self, ends: Sequence[ChoiceEnd], usage: Usage) -> list[Event]:
        (end,) = ends
        token = self._held or token_make(self._newest.token, "", self._newest.logprob, is_special=True)
        details = {
            "finish_reason": _finish_reason(end),
            "generated_tokens": end.output_tokens,
            "seed": self._seed(end),
            "input_length": self._head.prompt_tokens[0],
        }
        data = self._event(token, "".join(self._texts), details if self._options.details else None)
        return [Event(data)]

    def failed(self, error: ApiError) -> list[Event]:
        return [Event(error_body(error))]

    def whole(self, whole: Whole) -> bytes:
        ranked = sorted(whole.choices, key=lambda choice: mean_logprob(choice.logprobs), reverse=True)
        best, *others = ranked if len(ranked) > 1 else whole.choices
        answer: dict[str, Any] = {"generated_text": self._options.before + best.text}
        if self._options.details:
            prefill = self._prefill(whole)
            answer["details"] = {**self._details(best), "prefill": prefill}
            if others:
                answer["details"]["best_of_sequences"] = [
                    {
                        "generated_text": self._options.before + other.text,
                        **self._details(other),
                        "prefill": prefill,
                    }
                    for other in others
                ]
        return sse.json_line([answer] if self._options.listed else answer)

    def whole_headers(self, whole: Whole) -> list[tuple[bytes, bytes]]:
        counts = {
            b"x-compute-characters": self._options.characters,
            b"x-prompt-tokens": whole.usage.prompt_tokens,
            b"x-generated-tokens": whole.usage.output_tokens,
        }
        return [(name, str(count).encode()) for name, count in counts.items()]

    def _event(
        self, token: Token, generated_text: str | None = None, details: dict[str, Any] | None = None
    ) -> bytes:
        self._events += 1
        event = {"index": self._events, "token": token, "generated_text": generated_text, "details": details}
        if self._options.top_n_tokens:
            event["top_tokens"] = top_tokens(self._newest, self._tokens)
        return sse.json_line(event)

    def _prefill(self, whole: Whole) -> list[InputToken]:
        if not self._options.prefill:
            return []
        return input_tokens(self._head.first_tokens[0], whole.prompt_logprobs[0], self._tokens)

    def _details(self, choice: WholeChoice) -> dict[str, Any]:
        stop = choice.end.stopped_by
        details: dict[str, Any] = {
            "finish_reason": _finish_reason(choice.end),
            "generated_tokens": choice.end.output_tokens,
            "seed": self._seed(choice.end),
            "tokens": output_tokens(choice.logprobs, self._tokens, stop if isinstance(stop, str) else ""),
        }
        if self._options.top_n_tokens:
            details["top_tokens"] = [top_tokens(entry, self._tokens) for entry in choice.logprobs]
        return details

    def _seed(self, end: ChoiceEnd) -> int | None:
        """None where nothing was drawn, and of further choices: the worker derives theirs."""
        return self._head.seed if self._options.sampled and not end.choice else None


def _finish_reason(end: ChoiceEnd) -> str:
    if end.reason == "length":
        return "length"
    return "stop_sequence" if isinstance(end.stopped_by, str) else "eos_token"
