"""A request in the engine: its choices, and what they amount to. No torch here."""

from gpuworker.engine.plan import SequenceKey
from gpuworker.engine.sequence import Sequence
from gpuworker.wire.messages import RowKey, Submit


class Request:
    """Owned by the engine. `sequences[i]` is choice i."""

    def __init__(
        self,
        row: RowKey,
        submit: Submit,
        *,
        choices: int,
        max_tokens: int,
        stop_ids: frozenset[int],
        chain_root: bytes,
        now_ms: float,
    ) -> None:
        self.row = row
        self.submit = submit
        first: Sequence | None = None
        self.sequences: list[Sequence] = []
        for choice in range(choices):
            sequence = Sequence(
                row,
                submit,
                choice=choice,
                parent=first,
                max_tokens=max_tokens,
                stop_ids=stop_ids,
                chain_root=chain_root,
                now_ms=now_ms,
            )
            first = first or sequence
            self.sequences.append(sequence)
        self.open = choices  # choices that have not ended
        self.is_started = False  # its first choice began, and that was told
        self.is_export = False  # its prompt is computed for another replica, and nothing else
        self.is_refused = False  # its grammar was no good

    @property
    def keys(self) -> list[SequenceKey]:
        return [sequence.key for sequence in self.sequences]

    @property
    def first(self) -> Sequence:
        return self.sequences[0]

    @property
    def reason(self) -> str:
        """Empty while a choice is open."""
        return "" if self.open else self.first.reason

    @property
    def prompt_tokens(self) -> int:
        return 0 if self.first.started_ms is None else self.first.prompt_len

    @property
    def cached_tokens(self) -> int:
        return min(self.first.cached_tokens, self.first.prompt_len)

    @property
    def output_tokens(self) -> int:
        return sum(sequence.output_len for sequence in self.sequences)

    @property
    def preemptions(self) -> int:
        return sum(sequence.preemptions for sequence in self.sequences)
