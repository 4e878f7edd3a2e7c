"""What a request may say outside its body."""

from dataclasses import dataclass
from typing import Any

from gateway.openapi import site
from gateway.serving.idempotency import MAX_KEY_CHARACTERS

_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_STREAM_ID = f"{_UUID}(-[1-9][0-9]{{0,8}})?"
_MAX_NUMBER_DIGITS = 10  # of an event


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    place: str  # path | query | header
    schema: dict[str, Any]
    description: str
    example: str | int | None = None

    def document(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "name": self.name,
            "in": self.place,
            "required": self.place == "path",
            "schema": self.schema,
            "description": self.description,
        }
        if self.example is not None:
            shown["example"] = self.example
        return shown


REQUEST_ID = Parameter(
    "request_id",
    "path",
    {"type": "string", "format": "uuid"},
    "The `x-request-id` of the response.",
    "019a3c5e-7f00-7000-8000-000000000001",
)
STREAM_ID = Parameter(
    "stream_id",
    "path",
    {"type": "string", "pattern": f"^{_STREAM_ID}$"},
    "What the `id:` of its events begins with: the `x-request-id`, and of a later attempt its number.",
    "019a3c5e-7f00-7000-8000-000000000001",
)
MODEL = Parameter(
    "model", "path", {"type": "string", "minLength": 1}, "As `GET /v1/models` names it.", site.MODEL
)
AFTER = Parameter(
    "after",
    "query",
    {
        "type": ["integer", "string"],
        "minimum": 0,
        "maximum": 10**_MAX_NUMBER_DIGITS - 1,
        "maxLength": 0,
        "default": 0,
    },
    "The number of the last event that arrived; those after it are sent. Empty: all.",
    12,
)
LAST_EVENT_ID = Parameter(
    "Last-Event-ID",
    "header",
    {"type": "string", "pattern": f"^({_STREAM_ID}:[0-9]{{1,{_MAX_NUMBER_DIGITS}}})?$"},
    "The `id:` of the last event that arrived; wins over `after`.",
)
IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    "header",
    {
        "type": "string",
        "minLength": 1,
        "maxLength": MAX_KEY_CHARACTERS,
        "pattern": "^[!-~]([ -~]*[!-~])?$",
    },
    "The same key and body again get the same answer for 24 hours, and cost nothing again.",
)
STREAM_RESUME = Parameter(
    "X-Stream-Resume",
    "header",
    {"type": "string", "pattern": "^([01]|[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee])$"},
    "`1` or `true`: events have an `id: <stream id>:<n>`, and the stream can be resumed for 30 seconds after "
    "a cut. `0` and `false` are as if it was left out.",
)
DEADLINE = Parameter(
    "X-Request-Deadline-Ms",
    "header",
    {"type": "number", "minimum": 1},
    "Milliseconds after which the request is ended; at most 600,000.",
)
