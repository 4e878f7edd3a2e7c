"""Tokens with text and probability as TGI lists them."""

import codecs
import math
from collections.abc import Sequence

import msgspec

from gateway.dialects.base import TokenText
from gpuworker.wire.messages import TokenLogprobs

FLOOR = -9999.0  # JSON has no -Infinity
UNKNOWN = TokenLogprobs(0, 0.0, [])  # of a text without any token


class InputToken(msgspec.Struct, frozen=True):
    id: int
    text: str
    logprob: float | None


class Token(msgspec.Struct, frozen=True):
    id: int
    text: str
    logprob: float
    special: bool


def token_make(token: int, text: str, logprob: float, *, is_special: bool) -> Token:
    return Token(token, text, max(logprob, FLOOR), is_special)


def input_tokens(first: int, logprobs: Sequence[TokenLogprobs], tokens: TokenText) -> list[InputToken]:
    """`logprobs` are of all but the `first` token."""
    ids = [first, *(entry.token for entry in logprobs)]
    values = [None, *(max(entry.logprob, FLOOR) for entry in logprobs)]
    return [InputToken(*token) for token in zip(ids, _texts(ids, tokens), values, strict=True)]


def output_tokens(logprobs: Sequence[TokenLogprobs], tokens: TokenText, stop: str = "") -> list[Token]:
    """`stop`: the stop string that ended them; it and what follows are in no text."""
    texts = _texts([entry.token for entry in logprobs], tokens)
    if stop and (end := "".join(texts).find(stop)) >= 0:
        texts = _cut(texts, end)
    return [
        token_make(entry.token, text, entry.logprob, is_special=tokens.is_special(entry.token))
        for entry, text in zip(logprobs, texts, strict=True)
    ]


def top_tokens(entry: TokenLogprobs, tokens: TokenText) -> list[Token]:
    """The likeliest at one place, each with its text alone."""
    return [
        token_make(token, _text(token, tokens), logprob, is_special=tokens.is_special(token))
        for token, logprob in entry.top
    ]


def _text(token: int, tokens: TokenText) -> str:
    return tokens.token_bytes(token).decode("utf-8", "replace")


def _texts(ids: Sequence[int], tokens: TokenText) -> list[str]:
    """Joined they are the whole text: a character is in the text of the token that completes it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(tokens.token_bytes(token)) for token in ids]
    if texts:
        texts[-1] += decoder.decode(b"", final=True)
    return texts


def _cut(texts: list[str], length: int) -> list[str]:
    cut = []
    for text in texts:
        cut.append(text[: max(length, 0)])
        length -= len(text)
    return cut


def mean_logprob(logprobs: Sequence[TokenLogprobs]) -> float:
    """What the best of several sequences is chosen by."""
    return sum(entry.logprob for entry in logprobs) / len(logprobs) if logprobs else -math.inf
