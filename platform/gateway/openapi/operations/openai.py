"""The API that OpenAI's clients speak."""

from gateway.dialects.openai.schema import ChatBody, CompletionBody
from gateway.dialects.responses.events import AnyResponsesEvent
from gateway.dialects.responses.objects import Response
from gateway.dialects.responses.schema import ResponsesBody
from gateway.openapi import errors, parameters
from gateway.openapi.objects import openai, platform
from gateway.openapi.operations.base import GENERATION_HEADERS, HELLO, Operation
from gateway.openapi.site import MODEL

OPENAI_OPERATIONS = (
    Operation(
        method="post",
        path="/v1/chat/completions",
        id="createChatCompletion",
        tag="OpenAI",
        summary="Create a chat completion",
        description="Answers a conversation, whole or with `stream: true` in events as it is generated.",
        parameters=GENERATION_HEADERS,
        request=ChatBody,
        example={"model": MODEL, "messages": HELLO, "max_tokens": 64},
        answer=openai.ChatCompletion,
        event=openai.ChatCompletionChunk,
        ends_in="[DONE]",
        codes=errors.GENERATION,
    ),
    Operation(
        method="post",
        path="/v1/completions",
        id="createCompletion",
        tag="OpenAI",
        summary="Create a completion",
        description="Goes on with a text, or with each of several, given as strings or as token ids.",
        parameters=GENERATION_HEADERS,
        request=CompletionBody,
        example={"model": MODEL, "prompt": "Say hello:", "max_tokens": 64},
        answer=openai.Completion,
        event=openai.CompletionChunk,
        ends_in="[DONE]",
        codes=errors.GENERATION,
    ),
    Operation(
        method="post",
        path="/v1/responses",
        id="createResponse",
        tag="OpenAI",
        summary="Create a response",
        description="The stateless subset of the Responses API: text in, text out. Nothing is stored: "
        "`store` is answered with `store: false`, and what refers to stored responses is refused. The "
        "prompt is not repeated: `instructions` is always null. A stream that fails ends in an `error` "
        "event and `response.failed`.",
        parameters=GENERATION_HEADERS,
        request=ResponsesBody,
        example={"model": MODEL, "input": "Say hello.", "max_output_tokens": 64},
        answer=Response,
        event=AnyResponsesEvent,
        codes=errors.GENERATION,
    ),
    Operation(
        method="get",
        path="/v1/models",
        id="listModels",
        tag="OpenAI",
        summary="List models",
        description="Those that this key may use.",
        answer=platform.ModelList,
        answer_example={
            "object": "list",
            "data": [
                {
                    "id": MODEL,
                    "object": "model",
                    "created": 1_762_000_000,
                    "owned_by": "sluice",
                    "max_model_len": 4096,
                }
            ],
        },
        codes=errors.KEY,
    ),
    Operation(
        method="get",
        path="/v1/models/{model}",
        id="getModel",
        tag="OpenAI",
        summary="Get a model",
        parameters=(parameters.MODEL,),
        answer=platform.Model,
        answer_example={
            "id": MODEL,
            "object": "model",
            "created": 1_762_000_000,
            "owned_by": "sluice",
            "max_model_len": 4096,
        },
        codes=(*errors.KEY, "model_not_found"),
    ),
    Operation(
        method="post",
        path="/v1/moderations",
        id="createModeration",
        tag="OpenAI",
        summary="Classify a text",
        description="There is no moderation model yet: always 501.",
        codes=(*errors.KEY, "not_implemented"),
    ),
)
