"""What a request for a generation gets: an answer to deliver, and a way to leave it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from gateway import sse
from gateway.access.revocation import revoked
from gateway.answers.answer import Answer, Framing
from gateway.http.exchange import HeaderList
from tenants.contracts import KeyGrant

FramingFor = Callable[[str, bool], Framing]  # of a stream, by its id; whether its events carry their numbers


@dataclass(slots=True, eq=False)
class Served:
    """`request_id` is that of the generation, which is another's where this one is attached to it.

    `leave` must be called once: when the answer is delivered, or its client is gone.
    """

    answer: Answer
    request_id: UUID
    grant: KeyGrant
    leave: Callable[[], None]
    is_computed_here: bool = True
    headers: HeaderList = field(default_factory=list)

    def revoke(self) -> None:
        """The key of its client is not valid any more. Idempotent."""
        self.answer.break_off(revoked())


def sse_framing(stream_id: str, is_numbered: bool) -> Framing:
    return sse.NumberedFraming(stream_id) if is_numbered else sse.frame
