"""What a refusal says of a limit: the same in its body and in its headers."""

import json
from typing import Any

from tests.gateway.raw import Response


def limit_of(response: Response) -> dict[str, Any]:
    """What the body says, which the header says too."""
    body = response.json()
    error = body["error"]
    if isinstance(error, str):  # text-generation-inference
        error = body
    limit: dict[str, Any] = error["limit"] if "limit" in error else error["details"]["limit"]
    assert json.loads(response.headers["x-sluice-limit"]) == limit
    return limit


def retry_ms_of(response: Response) -> int:
    retry_ms = int(response.headers["retry-after-ms"])
    assert 0 < retry_ms <= 60_000
    assert int(response.headers["retry-after"]) == -(-retry_ms // 1000)
    return retry_ms
