"""What an operation of the API is. The document is made from these."""

from dataclasses import dataclass, field
from typing import Any

from gateway.dialects.base import Dialect
from gateway.dialects.registry import ENDPOINTS
from gateway.openapi import errors, parameters
from gateway.openapi.parameters import Parameter

GENERATION_HEADERS = (parameters.IDEMPOTENCY_KEY, parameters.STREAM_RESUME, parameters.DEADLINE)
HELLO: list[dict[str, object]] = [{"role": "user", "content": "Say hello."}]


@dataclass(frozen=True, kw_only=True)
class Operation:
    method: str
    path: str
    id: str
    tag: str
    summary: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    request: type | None = None
    example: dict[str, object] | None = None  # a body
    answer: Any = None  # type of the JSON body of the success
    answer_example: object = None  # where no dialect makes one
    event: Any = None  # type of the events' data
    ends_in: str = ""  # an end mark that is no JSON
    success: int = 200
    other: dict[int, tuple[str, Any]] = field(default_factory=dict)  # statuses that are no errors: what, type
    media: str = "application/json"  # of the success
    family: errors.ErrorFamily = errors.OPENAI
    codes: tuple[str, ...] = ()
    is_public: bool = False

    @property
    def dialect(self) -> Dialect | None:
        return ENDPOINTS.get(self.path)
