"""What a request's age leaves of its time, however often it is submitted again."""

from dataclasses import dataclass, field

import pytest

from gateway.answer_parts import Finished, PromptRow, Row, Sink
from gateway.errors import ApiError
from gateway.generation import Names
from gateway.upstream.stream import Stream
from tests.worker.support import submit_make


@dataclass
class Silent:
    """Who waits for it, and where it writes."""

    names: Names = field(default_factory=Names)
    sink: Sink = field(init=False)

    def __post_init__(self) -> None:
        self.sink = self

    def row(self, row: Row) -> None: ...

    def prompt_row(self, row: PromptRow) -> None: ...

    def continued(self, number: int) -> None: ...

    def finished(self, finished: Finished) -> None: ...

    def failed(self, error: ApiError) -> None: ...

    def fail(self, error: ApiError) -> None: ...

    def fail_late(self, message: str) -> None: ...

    def stream_settled(self) -> None: ...


@pytest.mark.parametrize("is_moved", [False, True])
def test_what_it_waited_counts_once(is_moved: bool) -> None:
    # Given a request that has 30 s to its first token, and 16 of them are over when it is submitted again
    submit = submit_make(1, "a prompt", start_ms=30_000, deadline_ms=60_000)
    stream = Stream(submit=submit, prompt=0, owner=Silent(), deadline_at=60.0, now=0.0)
    if is_moved:
        stream.move(2, 16.0, "a replica")
        assert (stream.submit.start_ms, stream.submit.lost_on) == (14_000, "a replica")
    else:
        assert stream.resubmit(16.0).start_ms == 14_000
    # When it is once more, 4 s later
    again = stream.resubmit(20.0)
    # Then 10 are left, and it is nothing to a new dispatcher where it was lost
    assert (again.start_ms, again.waited_ms, again.deadline_ms) == (10_000, 20_000, 40_000)
    assert again.lost_on == ""


def test_one_without_a_bound_has_none_later() -> None:
    stream = Stream(
        submit=submit_make(1, "a", start_ms=0), prompt=0, owner=Silent(), deadline_at=60.0, now=0.0
    )
    assert (stream.resubmit(0.0).start_ms, stream.resubmit(0.0).waited_ms) == (0, 1)
