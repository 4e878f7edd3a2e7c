"""What the smaller dialects check alike, beside `gateway.dialects.openai`'s ranges and refusals."""

from typing import Any

import msgspec

from gateway.dialects.openai.refusals import invalid
from gpuworker.wire.messages import Grammar

MAX_GRAMMAR_CHARACTERS = 64 * 1024


def grammar_make(param: str, kind: str, value: dict[str, Any] | str) -> Grammar:
    """`value`: a JSON schema, the text of one, or an expression; the worker says whether it can be followed.
    Raises ApiError."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    if not 0 < len(text) <= MAX_GRAMMAR_CHARACTERS:
        raise invalid(param, f"must have 1 to {MAX_GRAMMAR_CHARACTERS} characters")
    return Grammar(kind=kind, text=text)
