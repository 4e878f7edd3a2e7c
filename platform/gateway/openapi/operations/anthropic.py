"""The Messages API, as Anthropic's clients speak it."""

from gateway.dialects.anthropic.schema import MessagesBody, PromptBody
from gateway.openapi import errors
from gateway.openapi.objects import anthropic
from gateway.openapi.operations.base import GENERATION_HEADERS, HELLO, Operation
from gateway.openapi.site import MODEL

ANTHROPIC_OPERATIONS = (
    Operation(
        method="post",
        path="/v1/messages",
        id="createMessage",
        tag="Anthropic",
        summary="Create a message",
        description="Answers a conversation, whole or with `stream: true` in events as it is generated. "
        "Errors have Anthropic's envelope; `error.details` has the code and the parameter.",
        parameters=GENERATION_HEADERS,
        request=MessagesBody,
        example={"model": MODEL, "max_tokens": 64, "messages": HELLO},
        answer=anthropic.AnswerMessage,
        event=anthropic.MessageEvent,
        family=errors.ANTHROPIC,
        codes=errors.GENERATION,
    ),
    Operation(
        method="post",
        path="/v1/messages/count_tokens",
        id="countMessageTokens",
        tag="Anthropic",
        summary="Count a message's tokens",
        description="How many tokens the prompt has. Nothing is generated and nothing is charged.",
        request=PromptBody,
        example={"model": MODEL, "messages": HELLO},
        answer=anthropic.TokenCount,
        answer_example={"input_tokens": 9},
        family=errors.ANTHROPIC,
        codes=(*errors.SCOPE, *errors.SLOT, *errors.BODY, *errors.MODEL),
    ),
)
