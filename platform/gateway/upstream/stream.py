"""One prompt of a request as dispatcher and worker know it: submitted by a number, placed, computed, settled.

It is settled when nothing more is produced anywhere for it; only then its usage is known.
"""

from typing import Protocol

import msgspec

from gateway.answer_parts import ChoiceEnd, PromptRow, Row, Sink
from gateway.errors import ApiError
from gateway.generation import Names
from gpuworker.wire.messages import End, PromptLogprobs, Submit, TokenLogprobs, pack_ids

_NO_LOGPROBS: list[TokenLogprobs] = []
_BYTES_PER_ID = len(pack_ids([0]))


class StreamOwner(Protocol):
    """What a stream tells the request that it belongs to."""

    sink: Sink
    names: Names

    def fail(self, error: ApiError) -> None: ...

    def fail_late(self, message: str) -> None: ...

    def stream_settled(self) -> None: ...


class Stream:
    """Times are monotonic seconds. `prompt` is the number of its prompt, `n` its choices."""

    __slots__ = (
        "_ids",
        "_sink",
        "_start_ms",
        "cancel_reason",
        "cancelled_at",
        "choice_ends",
        "deadline_at",
        "end",
        "ended_code",
        "first_choice",
        "first_token_at",
        "is_heard",
        "is_paused",
        "is_settled",
        "last_token_at",
        "lost_cause",
        "lost_worker",
        "owner",
        "placed_at",
        "prompt",
        "prompt_tokens",
        "received",
        "recomputed_tokens",
        "sid",
        "submit",
        "submitted_at",
        "worker",
        "worker_id",
    )

    def __init__(
        self,
        *,
        submit: Submit,
        prompt: int,
        owner: StreamOwner,
        deadline_at: float,
        now: float,
    ) -> None:
        self.sid = submit.sid
        self.submit = submit
        self.prompt = prompt
        self.prompt_tokens = len(submit.prompt) // _BYTES_PER_ID
        self.first_choice = prompt * submit.n
        self.owner = owner
        self._sink = owner.sink
        self.submitted_at = now
        self._start_ms = submit.start_ms  # from then on
        self.deadline_at = deadline_at
        self.placed_at = 0.0
        self.first_token_at = 0.0
        self.last_token_at = 0.0
        self.worker = ""  # incarnation
        self.worker_id = ""
        self.received = [0] * submit.n  # output tokens of each choice
        # Packed ids of all that was received; None: not wanted, or not whole.
        self._ids: bytearray | None = bytearray() if submit.wants_ids else None
        self.choice_ends: dict[int, ChoiceEnd] = {}
        self.is_heard = False  # by a replica: no other one may write into it
        self.cancel_reason = ""
        self.cancelled_at = 0.0
        self.end: End | None = None
        self.ended_code = ""  # of the dispatcher, or replica_lost
        self.lost_cause = ""  # why the latest replica was lost, one of billing.contracts.LOST_CAUSES
        self.lost_worker = ""  # its incarnation
        self.recomputed_tokens = 0  # prompt and output that other replicas had to compute again
        self.is_paused = False  # or is to be, once it runs
        self.is_settled = False

    def begin(self, now: float) -> None:
        """Its first token came. Without their ids it is not submitted again, and its prompt is not needed any
        more."""
        self.first_token_at = now
        if self._ids is None:
            self.submit = msgspec.structs.replace(self.submit, prompt=b"")

    @property
    def request_id(self) -> str:
        return self.submit.request_id

    @property
    def output_tokens(self) -> int:
        return sum(self.received)

    @property
    def has_begun(self) -> bool:
        return any(self.received)

    @property
    def is_over(self) -> bool:
        """It ended by itself, though it may not be settled yet."""
        return self.is_settled or self.end is not None or bool(self.ended_code)

    def append(
        self,
        choice: int,
        start: int,
        count: int,
        text: str,
        logprobs: list[TokenLogprobs] = _NO_LOGPROBS,
        ids: bytes = b"",
    ) -> bool:
        """One entry of a token frame. False when tokens are missing before it."""
        received = self.received
        if not 0 <= choice < len(received) or start != received[choice]:
            return False
        received[choice] = start + count
        self.is_heard = True
        if self._ids is not None:
            self._ids += ids
        if (text or logprobs) and not self.cancel_reason:
            self._sink.row(Row(self.first_choice + choice, count, text, logprobs))
        return True

    def append_prompt(self, logprobs: PromptLogprobs) -> None:
        self.is_heard = True
        if not self.cancel_reason:
            self._sink.prompt_row(PromptRow(self.prompt, logprobs.first, logprobs.tokens))

    def choice_end(self, choice: int, reason: str, output_tokens: int, stopped_by: str | int | None) -> None:
        number = self.first_choice + choice
        self.choice_ends[choice] = ChoiceEnd(number, reason, output_tokens, stopped_by)

    @property
    def prompt_bytes(self) -> bytes:
        """Packed ids, without what was generated; empty where they are not needed any more."""
        return self.submit.prompt[: self.prompt_tokens * _BYTES_PER_ID]

    @property
    def may_move(self) -> bool:
        """Whether another replica can go on where this one was: nothing came of it, or the ids of all did."""
        if not self.is_heard and not self.has_begun:
            return True
        if self._ids is None or not 0 < self.output_tokens < self.submit.max_tokens:
            return False
        return len(self._ids) == _BYTES_PER_ID * self.output_tokens

    def move(self, sid: int, now: float, lost_on: str) -> None:
        """To be submitted again, under that number: no replica has it any more. `lost_on`: see `Submit`."""
        ids = self._ids or b""
        if emitted := len(ids) // _BYTES_PER_ID:
            self.submitted_at = now  # it was served until now: its start is as far as one's that comes now
        submit = self.resubmit(now)
        prompt = self.prompt_bytes + ids
        self.submit = msgspec.structs.replace(
            submit,
            sid=sid,
            moves=submit.moves + 1,
            prompt=bytes(prompt),
            emitted=emitted,
            lost_on=lost_on,
        )
        self.sid, self.worker, self.worker_id = sid, "", ""
        self.placed_at, self.is_heard = 0.0, False
        if emitted:  # of one without a token nobody knows how far it was
            self.recomputed_tokens += self.prompt_tokens + emitted
            self._sink.continued(self.submit.moves + 1)

    def resubmit(self, now: float) -> Submit:
        """The same for a dispatcher that may not know it, with its age."""
        waited_ms = int((now - self.submitted_at) * 1000)
        return msgspec.structs.replace(
            self.submit,
            waited_ms=max(1, waited_ms),  # 0 is for new ones
            start_ms=max(1, self._start_ms - waited_ms) if self._start_ms else 0,
            deadline_ms=max(1, int((self.deadline_at - now) * 1000)),
            lost_on="",
        )

    def settle(self) -> None:
        """Nothing more will come from dispatcher or worker."""
        if not self.is_settled:
            self.is_settled = True
            self.owner.stream_settled()

    def release(self) -> None:
        """Nobody writes into it any more: without what it wrote to, a request is freed at its end, and the
        cycle collector has nothing to find."""
        del self.owner, self._sink
