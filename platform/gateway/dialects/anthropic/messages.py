"""`POST /v1/messages`: Anthropic's Messages API for text."""

import secrets

from gateway.answer_parts import Head
from gateway.dialects.anthropic.errors import error_body, status_and_type
from gateway.dialects.anthropic.prompt import prompt_make
from gateway.dialects.anthropic.renderer import MessageRenderer
from gateway.dialects.anthropic.schema import MESSAGES_BODY, MessagesBody, PromptBody
from gateway.dialects.base import Ask, Dialect, Options, Renderer, TokenText
from gateway.dialects.checks import grammar_make
from gateway.dialects.openai.decoding import decode
from gateway.dialects.openai.refusals import invalid
from gateway.errors import ApiError
from gateway.generation import Generation, Names
from gpuworker.wire.messages import Grammar, Sampling

GRAMMAR_PARAM = "output_config.format.schema"
NAMES = Names(prompt="messages", max_tokens="max_tokens", grammar=GRAMMAR_PARAM)
_SERVICE_TIERS = ("auto", "standard_only")


class Messages(Dialect):
    name = "anthropic.messages"
    options_type = Options

    def parse(self, body: bytes) -> Ask:
        asked = decode(body, MESSAGES_BODY)
        if asked.service_tier is not None and asked.service_tier not in _SERVICE_TIERS:
            raise invalid("service_tier", f"must be one of {', '.join(_SERVICE_TIERS)}")
        generation = Generation(
            model=asked.model,
            prompts=(prompt_make(asked),),
            stream=bool(asked.stream),
            sampling=_sampling(asked),
            max_tokens=asked.max_tokens,
            stop=tuple(asked.stop_sequences or ()),
            grammar=grammar_of(asked),
            names=NAMES,
        )
        return Ask(generation, Options())

    def renderer(self, options: Options, head: Head, tokens: TokenText) -> Renderer:
        return MessageRenderer(head)

    def error(self, error: ApiError, request_id: str) -> tuple[int, bytes]:
        status, _ = status_and_type(error)
        return status, error_body(error, request_id)


def _sampling(body: MessagesBody) -> Sampling:
    top_p = 1.0 if body.top_p is None else body.top_p
    top_k = body.top_k or 0
    if top_p == 0:  # the limit of a shrinking nucleus: the likeliest token
        top_p, top_k = 1.0, 1
    return Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=top_p,
        top_k=top_k,
        seed=secrets.randbits(64),
    )


def grammar_of(body: PromptBody) -> Grammar | None:
    """What the answer must match. Raises ApiError."""
    wanted = body.output_config.format if body.output_config is not None else None
    if wanted is None:
        return None
    if wanted.type != "json_schema":
        raise invalid("output_config.format.type", "must be json_schema")
    return grammar_make(GRAMMAR_PARAM, "json_schema", wanted.schema)


MESSAGES = Messages()
