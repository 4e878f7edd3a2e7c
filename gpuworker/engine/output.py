"""What one engine step has to tell the world, gathered per gateway. No torch here."""

from dataclasses import dataclass, field

from gpuworker.engine.machine_time import Work
from gpuworker.engine.request import Request
from gpuworker.engine.sequence import Sequence
from gpuworker.engine.transfer import PrefillResult
from gpuworker.wire.messages import (
    CHECKPOINT_TOKENS,
    ChoiceEnd,
    End,
    PromptLogprobs,
    RowKey,
    Submit,
    TokenLogprobs,
    pack_ids,
)

OWN_ENDS = ("stop", "length")  # all other reasons end an output before it is done


class GatewayOutput:
    """Columns of the `Frame` for one gateway incarnation."""

    def __init__(self) -> None:
        self.sids: list[int] = []
        self.starts: list[int] = []
        self.counts: list[int] = []
        self.texts: list[str] = []
        self.ends: list[End] = []
        self.prompts: list[PromptLogprobs] = []
        self.choice_ends: list[ChoiceEnd] = []
        self._ids: list[bytes] = []
        self._choices: list[int] = []
        self._logprobs: list[list[TokenLogprobs]] = []

    @property
    def choices(self) -> list[int]:
        """Empty when every entry is of choice 0."""
        return self._choices if any(self._choices) else []

    @property
    def logprobs(self) -> list[list[TokenLogprobs]]:
        """Empty when nobody asked."""
        return self._logprobs if any(self._logprobs) else []

    @property
    def ids(self) -> list[bytes]:
        """Empty when nobody asked."""
        return self._ids if any(self._ids) else []

    def add(
        self, sequence: Sequence, count: int, text: str, logprobs: TokenLogprobs | None, ids: bytes = b""
    ) -> None:
        start, entries = sequence.output_len - count, [] if logprobs is None else [logprobs]
        self.add_entry(sequence.key.sid, sequence.key.choice, start, count, text, entries, ids)

    def add_entry(
        self,
        sid: int,
        choice: int,
        start: int,
        count: int,
        text: str,
        logprobs: list[TokenLogprobs],
        ids: bytes,
    ) -> None:
        self.sids.append(sid)
        self.starts.append(start)
        self.counts.append(count)
        self.texts.append(text)
        self._choices.append(choice)
        self._logprobs.append(logprobs)
        self._ids.append(ids)

    def add_tail(self, sequence: Sequence, text: str) -> None:
        """Joins the row's token of this step, or stands alone."""
        for at, (sid, choice) in enumerate(zip(self.sids, self._choices, strict=True)):
            if (sid, choice) == (sequence.key.sid, sequence.key.choice):
                self.texts[at] += text
                return
        self.add(sequence, 0, text, None)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State of a request that the worker journals: at its start, every 64 output tokens, at its end."""

    row: RowKey
    submit: Submit
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    reason: str  # "" while it runs


@dataclass(slots=True)
class StepOutput:
    step: int
    gateways: dict[str, GatewayOutput] = field(default_factory=dict)
    prefilled: list[RowKey] = field(default_factory=list)  # rows with their first token in this step
    ended: list[RowKey] = field(default_factory=list)
    cut: list[RowKey] = field(default_factory=list)  # of those, the ones that were cancelled or failed
    refused: list[tuple[RowKey, str, str]] = field(
        default_factory=list
    )  # code, message; nothing was computed
    exports: list[tuple[RowKey, PrefillResult | None]] = field(default_factory=list)  # None: it ended early
    work: list[Work] = field(default_factory=list)  # machine time of the step, by flow
    _checkpoints: dict[RowKey, Checkpoint] = field(default_factory=dict)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        return list(self._checkpoints.values())

    def gateway(self, row: RowKey) -> GatewayOutput:
        found = self.gateways.get(row.gateway)
        if found is None:
            found = self.gateways[row.gateway] = GatewayOutput()
        return found

    def add_token(
        self, request: Request, sequence: Sequence, text: str, logprobs: TokenLogprobs | None
    ) -> None:
        """The sequence's newest token. A choice has at most one per step."""
        ids = pack_ids(sequence.token_ids[-1:]) if request.submit.wants_ids else b""
        self.gateway(request.row).add(sequence, 1, text, logprobs, ids)
        if sequence is request.first and sequence.output_len == sequence.emitted + 1:
            self.prefilled.append(request.row)
        if sequence.output_len % CHECKPOINT_TOKENS == 0:
            self.add_checkpoint(request)

    def add_prompt_logprobs(self, request: Request, first: int, tokens: list[TokenLogprobs]) -> None:
        self.gateway(request.row).prompts.append(
            PromptLogprobs(sid=request.row.sid, first=first, tokens=tokens)
        )

    def add_choice_end(self, request: Request, sequence: Sequence, tail: str, now_ms: float) -> None:
        """`tail` is text that was held back. The last choice's end is the request's."""
        gateway = self.gateway(request.row)
        if tail:
            gateway.add_tail(sequence, tail)
        if request.submit.n > 1:
            gateway.choice_ends.append(
                ChoiceEnd(
                    sid=request.row.sid,
                    choice=sequence.key.choice,
                    reason=sequence.reason,
                    output_tokens=sequence.output_len,
                    stopped_by=sequence.stopped_by,
                )
            )
        if not request.open:
            gateway.ends.append(_end(request, now_ms))
            self.ended.append(request.row)
            if request.reason not in OWN_ENDS:  # it had more to say
                self.cut.append(request.row)
            self.add_checkpoint(request)

    def add_checkpoint(self, request: Request) -> None:
        self.put_checkpoint(
            Checkpoint(
                row=request.row,
                submit=request.submit,
                prompt_tokens=request.prompt_tokens,
                cached_tokens=request.cached_tokens,
                output_tokens=request.output_tokens,
                reason=request.reason,
            )
        )

    def put_checkpoint(self, checkpoint: Checkpoint) -> None:
        """The last one of a request in a step replaces the others."""
        self._checkpoints[checkpoint.row] = checkpoint


def _end(request: Request, now_ms: float) -> End:
    first = request.first
    started = now_ms if first.started_ms is None else first.started_ms
    first_token = now_ms if first.first_token_ms is None else first.first_token_ms
    return End(
        sid=request.row.sid,
        reason=request.reason,
        prompt_tokens=request.prompt_tokens,
        cached_tokens=request.cached_tokens,
        output_tokens=request.output_tokens,
        queue_ms=round(started - first.arrived_ms),
        prefill_ms=round(first_token - started),
        decode_ms=round(now_ms - first_token),
        preemptions=request.preemptions,
        message=next((sequence.message for sequence in request.sequences if sequence.message), ""),
        stopped_by=first.stopped_by,
    )
