"""The Responses API of OpenAI: the stateless subset."""

from gateway.dialects.responses.dialect import RESPONSES

__all__ = ["RESPONSES"]
