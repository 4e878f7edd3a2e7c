"""Log probabilities of tokens as OpenAI's two objects and as vLLM's `prompt_logprobs`."""

import codecs
from collections.abc import Sequence
from typing import Any

from gateway.dialects.base import TokenText, WholeChoice
from gpuworker.wire.messages import TokenLogprobs

_FLOOR = -9999.0  # OpenAI's word for "very unlikely"; JSON has no -Infinity


class TextOffsets:
    """Where each token begins in the text that they make together, in characters.

    A token may be part of a character, so its bytes are decoded behind those before it. Control tokens have
    no text.
    """

    __slots__ = ("_characters", "_decoder", "_tokens")

    def __init__(self, tokens: TokenText) -> None:
        self._tokens = tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0

    def next(self, token: int) -> int:
        begin = self._characters
        if not self._tokens.is_special(token):
            self._characters += len(self._decoder.decode(self._tokens.token_bytes(token)))
        return begin


def token_string(tokens: TokenText, token: int) -> str:
    """Bytes of an incomplete character are shown as replacement characters."""
    return tokens.token_bytes(token).decode("utf-8", "replace")


def chat_logprobs(rows: Sequence[TokenLogprobs], tokens: TokenText, top: int) -> dict[str, Any]:
    content = [
        _chat_token(tokens, row.token, row.logprob)
        | {"top_logprobs": [_chat_token(tokens, token, logprob) for token, logprob in row.top[:top]]}
        for row in rows
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    rows: Sequence[TokenLogprobs], tokens: TokenText, top: int, offsets: TextOffsets, first: int | None = None
) -> dict[str, Any]:
    """`first`: a token before all others, of which there is no probability: an echoed prompt's."""
    object_: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    if first is not None:
        object_["tokens"].append(token_string(tokens, first))
        object_["token_logprobs"].append(None)
        object_["top_logprobs"].append(None)
        object_["text_offset"].append(offsets.next(first))
    for row in rows:
        chosen = token_string(tokens, row.token)
        alternatives: dict[str, float] = {}
        for token, logprob in [*row.top[:top], (row.token, row.logprob)]:
            alternatives.setdefault(token_string(tokens, token), max(logprob, _FLOOR))
        object_["tokens"].append(chosen)
        object_["token_logprobs"].append(max(row.logprob, _FLOOR))
        object_["top_logprobs"].append(alternatives)
        object_["text_offset"].append(offsets.next(row.token))
    return object_


def prompt_logprobs(rows: Sequence[TokenLogprobs], tokens: TokenText, top: int) -> list[Any]:
    """vLLM's field: for each token of the prompt its alternatives by id; null for the first."""
    return [None, *(_by_id(row, tokens, top) for row in rows)]


def before_the_stop(
    choice: WholeChoice, tokens: TokenText, prompt: Sequence[int] = ()
) -> list[TokenLogprobs]:
    """The output's rows without those whose text a stop string took away. `prompt`: what the text begins
    with, where it is echoed."""
    if not isinstance(choice.end.stopped_by, str):
        return choice.logprobs
    offsets = TextOffsets(tokens)
    for token in prompt:
        offsets.next(token)
    return [row for row in choice.logprobs if offsets.next(row.token) < len(choice.text)]


def _chat_token(tokens: TokenText, token: int, logprob: float) -> dict[str, Any]:
    data = tokens.token_bytes(token)
    return {
        "token": data.decode("utf-8", "replace"),
        "logprob": max(logprob, _FLOOR),
        "bytes": list(data),
    }


def _by_id(row: TokenLogprobs, tokens: TokenText, top: int) -> dict[str, Any]:
    told = {
        str(token): _ranked(tokens, token, logprob, rank)
        for rank, (token, logprob) in enumerate(row.top[:top], start=1)
    }
    told.setdefault(str(row.token), _ranked(tokens, row.token, row.logprob, None))
    return told


def _ranked(tokens: TokenText, token: int, logprob: float, rank: int | None) -> dict[str, Any]:
    return {"logprob": max(logprob, _FLOOR), "rank": rank, "decoded_token": token_string(tokens, token)}
