"""`POST /v1/messages/count_tokens`: how many tokens a Messages request's prompt has. Nothing is generated.

The core tokenises the prompt as for a generation; errors are in the words of `MESSAGES`.
"""

import msgspec

from gateway.dialects.anthropic.messages import NAMES, grammar_of
from gateway.dialects.anthropic.prompt import prompt_make
from gateway.dialects.anthropic.schema import COUNT_TOKENS_BODY
from gateway.dialects.openai.decoding import decode
from gateway.generation import Generation
from gpuworker.wire.messages import Sampling


def count_tokens_parse(body: bytes) -> Generation:
    """One prompt and nothing to sample. Raises ApiError."""
    asked = decode(body, COUNT_TOKENS_BODY)
    prompts = (prompt_make(asked),)
    grammar_of(asked)  # has no tokens of its own, but a wrong one is wrong here too
    return Generation(model=asked.model, prompts=prompts, stream=False, sampling=Sampling(), names=NAMES)


def count_tokens_reply(input_tokens: int) -> bytes:
    return msgspec.json.encode({"input_tokens": input_tokens})
