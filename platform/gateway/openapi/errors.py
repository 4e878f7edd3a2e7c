"""What each error means, when it can happen, and how the three envelopes say it."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from gateway.dialects.anthropic import errors as anthropic
from gateway.dialects.tgi import errors as tgi
from gateway.errors import ERRORS, ApiError
from gateway.openapi.objects.errors import Error, GenerateError, MessagesError

MEANINGS = {
    "invalid_http": "This is not HTTP: an unknown method, a broken chunk, a length and chunks at once.",
    "invalid_json": "The body is not JSON in UTF-8, or it is nested too deeply.",
    "invalid_type": "A parameter has the wrong type; `param` says which.",
    "invalid_value": "A parameter has a value that is not allowed; `param` says which.",
    "missing_required_parameter": "A required parameter is missing; `param` says which.",
    "unknown_parameter": "There is no such parameter; `param` says which.",
    "unsupported_parameter": "The parameter asks for something that is not offered here.",
    "context_length_exceeded": "Prompt and output together do not fit the model's context.",
    "output_limit_exceeded": "More output is asked for than the tenant or the model may have.",
    "request_exceeds_quota": "The request alone is larger than what its quota can ever hold.",
    "invalid_api_key": "There is no API key, or not a live one.",
    "insufficient_scope": "The key lacks the scope that this endpoint needs.",
    "model_not_allowed": "The key may not use this model.",
    "origin_not_allowed": "Pages of this origin may not open a WebSocket.",
    "model_not_found": "There is no such model.",
    "unknown_url": "There is nothing at this path.",
    "request_not_found": "There is no such request of this tenant.",
    "method_not_allowed": "The path has no such method; the `allow` header lists those it has.",
    "request_timeout": "The body did not arrive in time.",
    "request_in_progress": "The first request with this `Idempotency-Key` still runs.",
    "replay_not_available": "The first request with this key is finished, but its answer was not kept.",
    "resume_expired": "The stream cannot be resumed any more: send the request again.",
    "request_too_large": "The body is larger than 4 MiB.",
    "unsupported_encoding": "The body has a `Content-Encoding`: send it as it is.",
    "idempotency_key_reused": "The idempotency key was used with another request.",
    "request_quarantined": "Several replicas were lost with this request: it is not run for ten minutes.",
    "upgrade_required": "This is a WebSocket: open it with an upgrade.",
    "queue_full": "Too many requests wait for this model.",
    "deadline_unmeetable": "So much waits that this request would not begin before its deadline.",
    "concurrent_requests": "The key, or its tenant, has as many requests open as it may.",
    "requests_per_minute": "As many requests as are allowed in a minute were made.",
    "tokens_per_minute": "As many tokens as are allowed in a minute were used, or are reserved.",
    "insufficient_quota": "The budget of this day or month is spent.",
    "headers_too_large": "The headers are larger than 32 KiB, or there are more than 100.",
    "internal_error": "A defect of the gateway.",
    "engine_error": "A defect of the engine.",
    "stream_gap": "Tokens were lost on their way.",
    "usage_not_recorded": "The usage could not be stored, so the answer is withheld.",
    "not_implemented": "Not offered yet.",
    "gateway_stopping": "This gateway is being stopped; another one serves the retry.",
    "gateway_lost": "The gateway that computed this answer was lost.",
    "overloaded": "No replica, no dispatcher or no store can be reached, or too much is waiting.",
    "replica_lost": "The replica that computed this answer was lost.",
    "request_cancelled": "The request was cancelled by the platform.",
    "slow_reader": "The stream was cut because it was not read. Only ever an event.",
    "deadline_exceeded": "The deadline passed.",
}

# When a code can happen. What the protocol refuses never reaches a handler, so it has OpenAI's envelope.
PROTOCOL = ("headers_too_large",)
ALWAYS = ("internal_error",)
READY = ("overloaded",)
KEY = ("invalid_api_key", "overloaded")
SCOPE = (*KEY, "insufficient_scope")
SLOT = ("concurrent_requests", "gateway_stopping", "overloaded")
BODY = (
    "invalid_json",
    "invalid_type",
    "invalid_value",
    "missing_required_parameter",
    "unknown_parameter",
    "unsupported_parameter",
    "request_timeout",
    "request_too_large",
    "unsupported_encoding",
)
MODEL = ("model_not_allowed", "model_not_found", "context_length_exceeded")
QUOTA = ("request_exceeds_quota", "requests_per_minute", "tokens_per_minute", "insufficient_quota")
RUN = (
    "output_limit_exceeded",
    "queue_full",
    "deadline_unmeetable",
    "engine_error",
    "stream_gap",
    "usage_not_recorded",
    "gateway_lost",
    "replica_lost",
    "request_cancelled",
    "request_quarantined",
    "deadline_exceeded",
)
IDEMPOTENCY = ("request_in_progress", "replay_not_available", "idempotency_key_reused")
GENERATION = (*SCOPE, *SLOT, *BODY, *MODEL, *QUOTA, *RUN, *IDEMPOTENCY)


@dataclass(frozen=True, slots=True)
class ErrorFamily:
    """One envelope. `values_at`: where in it the word stands that tells errors apart."""

    name: str
    envelope: type
    status_and_word: Callable[[ApiError], tuple[int, str]]
    values_at: tuple[str, ...]

    def by_status(self, codes: Iterable[str]) -> dict[int, list[str]]:
        """Codes in the order of ERRORS, by the status that they are sent with."""
        given, found = set(codes), defaultdict(list)
        for code in ERRORS:
            if code in given:
                found[self.status_and_word(ApiError(code, ""))[0]].append(code)
        return dict(sorted(found.items()))

    def narrowed(self, codes: Iterable[str]) -> dict[str, Any]:
        """Schema: the envelope with one of these."""
        words = sorted({self.status_and_word(ApiError(code, ""))[1] for code in codes})
        schema: dict[str, Any] = {"enum": words}
        for name in reversed(self.values_at):
            schema = {"properties": {name: schema}}
        return {"allOf": [{"$ref": f"#/components/schemas/{self.envelope.__name__}"}, schema]}


OPENAI = ErrorFamily("openai", Error, lambda error: (error.status, error.code), ("error", "code"))
ANTHROPIC = ErrorFamily(
    "anthropic",
    MessagesError,
    lambda error: (anthropic.status_and_type(error)[0], error.code),
    ("error", "details", "error_code"),
)
TGI = ErrorFamily("tgi", GenerateError, tgi.status_and_type, ("error_type",))
