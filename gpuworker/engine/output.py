"""What one engine step has to tell the world, gathered per gateway. No torch here."""

from dataclasses import dataclass, field

from gpuworker.engine.sequence import Sequence
from gpuworker.wire.messages import CHECKPOINT_TOKENS, End, RowKey, Submit


@dataclass(slots=True)
class GatewayOutput:
    """Columns of the `Frame` for one gateway incarnation."""

    sids: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State of a row that the worker journals: at its start, every 64 output tokens, at its end."""

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
    _checkpoints: dict[RowKey, Checkpoint] = field(default_factory=dict)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        return list(self._checkpoints.values())

    def _gateway(self, key: RowKey) -> GatewayOutput:
        return self.gateways.setdefault(key.gateway, GatewayOutput())

    def add_token(self, sequence: Sequence, text: str) -> None:
        """The sequence's newest token. A row has at most one per step."""
        gateway = self._gateway(sequence.key)
        gateway.sids.append(sequence.key.sid)
        gateway.starts.append(sequence.output_len - 1)
        gateway.counts.append(1)
        gateway.texts.append(text)
        if sequence.output_len == 1:
            self.prefilled.append(sequence.key)
        if sequence.output_len % CHECKPOINT_TOKENS == 0:
            self.add_checkpoint(sequence)

    def add_end(self, sequence: Sequence, tail: str, now_ms: float) -> None:
        """`tail` is text that was held back; it joins the row's token of this step, or stands alone."""
        gateway = self._gateway(sequence.key)
        sid = sequence.key.sid
        if tail and gateway.sids and sid in gateway.sids:
            gateway.texts[gateway.sids.index(sid)] += tail
        elif tail:
            gateway.sids.append(sid)
            gateway.starts.append(sequence.output_len)
            gateway.counts.append(0)
            gateway.texts.append(tail)
        gateway.ends.append(_end(sequence, now_ms))
        self.ended.append(sequence.key)
        self.add_checkpoint(sequence)

    def add_checkpoint(self, sequence: Sequence) -> None:
        """The last one of a row in a step replaces the others."""
        self._checkpoints[sequence.key] = Checkpoint(
            row=sequence.key,
            submit=sequence.submit,
            prompt_tokens=_prompt_tokens(sequence),
            cached_tokens=sequence.cached_tokens,
            output_tokens=sequence.output_len,
            reason=sequence.reason,
        )


def _prompt_tokens(sequence: Sequence) -> int:
    return 0 if sequence.started_ms is None else sequence.prompt_len


def _end(sequence: Sequence, now_ms: float) -> End:
    started = now_ms if sequence.started_ms is None else sequence.started_ms
    first = now_ms if sequence.first_token_ms is None else sequence.first_token_ms
    return End(
        sid=sequence.key.sid,
        reason=sequence.reason,
        prompt_tokens=_prompt_tokens(sequence),
        cached_tokens=sequence.cached_tokens,
        output_tokens=sequence.output_len,
        queue_ms=round(started - sequence.arrived_ms),
        prefill_ms=round(first - started),
        decode_ms=round(now_ms - first),
        preemptions=sequence.preemptions,
        message=sequence.message,
    )
