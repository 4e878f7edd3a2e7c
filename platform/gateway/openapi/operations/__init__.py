"""Every operation of the API: what it takes, what it answers, how it fails."""

from gateway.openapi.operations.anthropic import ANTHROPIC_OPERATIONS
from gateway.openapi.operations.base import Operation
from gateway.openapi.operations.openai import OPENAI_OPERATIONS
from gateway.openapi.operations.platform import PLATFORM_OPERATIONS
from gateway.openapi.operations.streams import STREAM_OPERATIONS
from gateway.openapi.operations.tgi import TGI_OPERATIONS

__all__ = ["OPERATIONS", "TAGS", "Operation"]

TAGS = {
    "OpenAI": "The API that OpenAI's clients speak. Base URL: `/v1`.",
    "Anthropic": "The Messages API, as Anthropic's clients speak it.",
    "text-generation-inference": "As its clients speak it. Requests are for the default model.",
    "Streams and usage": "What a request used, and how to go on with a stream that was cut.",
    "Platform": "Health and this reference. None of these needs a key.",
}

OPERATIONS: tuple[Operation, ...] = (
    *OPENAI_OPERATIONS,
    *ANTHROPIC_OPERATIONS,
    *TGI_OPERATIONS,
    *STREAM_OPERATIONS,
    *PLATFORM_OPERATIONS,
)
