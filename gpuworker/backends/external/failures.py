"""What may go wrong with an upstream, and what each of it means for the request and for the upstream."""

from dataclasses import dataclass
from typing import Literal

from gpuworker.backends.external.answer import UpstreamError, WrongModel
from gpuworker.backends.external.event_stream import BadStream

Kind = Literal[
    "unreachable",  # no connection, or none that lasted until the first token
    "silent",  # connected, and no token in time
    "overloaded",  # it says so
    "refused",  # the request is at fault
    "misconfigured",  # it does not know us, or not this model
    "broken",  # it failed, or what it says is no answer
    "wrong_model",  # it answers with another model
]
MAX_MESSAGE = 300
_TOLD: dict[Kind, str] = {
    "unreachable": "cannot be reached",
    "silent": "gave no token for too long",
    "overloaded": "has too much to do",
    "refused": "refuses this request",
    "misconfigured": "does not serve this model to us",
    "broken": "ended its answer early",
    "wrong_model": "answers with another model",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """`message` is for logs. What the upstream says is never in it: that may quote the prompt or the key."""

    kind: Kind
    message: str

    @property
    def told(self) -> str:
        """For clients: a word to look for, and no inner cause."""
        return f"upstream_{self.kind}: the model's server {_TOLD[self.kind]}"


def failure_of_status(status: int) -> Failure:
    match status:
        case 429 | 503:
            kind: Kind = "overloaded"
        case 502 | 504:
            kind = "unreachable"
        case 400 | 413 | 422:
            kind = "refused"
        case _ if 400 <= status < 500:
            kind = "misconfigured"
        case _:
            kind = "broken"
    return Failure(kind, f"HTTP {status}")


def failure_of_error(error: BadStream) -> Failure:
    if isinstance(error, UpstreamError):
        return failure_of_status(error.status)
    return Failure("wrong_model" if isinstance(error, WrongModel) else "broken", str(error)[:MAX_MESSAGE])
