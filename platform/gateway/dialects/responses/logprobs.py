"""Log probabilities as the Responses API writes them."""

from collections.abc import Iterable
from typing import Any

from gateway.dialects.base import TokenText
from gateway.dialects.responses.objects import ResponsesLogprob, ResponsesTopLogprob
from gpuworker.wire.messages import TokenLogprobs

_MIN_LOGPROB = -9999.0  # JSON has no infinity; OpenAI writes this for tokens that cannot be


def logprobs_render(rows: Iterable[TokenLogprobs], tokens: TokenText) -> list[ResponsesLogprob]:
    return [
        ResponsesLogprob(
            **_token(row.token, row.logprob, tokens),
            top_logprobs=[
                ResponsesTopLogprob(**_token(token, logprob, tokens)) for token, logprob in row.top
            ],
        )
        for row in rows
    ]


def _token(token: int, logprob: float, tokens: TokenText) -> dict[str, Any]:
    data = tokens.token_bytes(token)
    return {
        "token": data.decode("utf-8", "replace"),
        "bytes": list(data),
        "logprob": max(logprob, _MIN_LOGPROB),
    }
