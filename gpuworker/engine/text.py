"""Between sampled ids and what a client sees: detokenizers, stop strings, grammars, echoed prompts. No torch.

A grammar is compiled while its row waits outside the batch. Its next mask is made as soon as a token is
accepted, so that a mask that cannot be made ends the row and never a step.
"""

from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer

from gpuworker.engine.detokenizer import Detokenizer
from gpuworker.engine.grammar import GrammarCompiler, GrammarError, GrammarState
from gpuworker.engine.plan import SequenceKey, StepPlan
from gpuworker.engine.request import Request
from gpuworker.engine.sequence import Sequence
from gpuworker.wire.messages import RowKey


class TextStage:
    def __init__(
        self, tokenizer: Tokenizer, tokenizer_path: Path, vocab_size: int, eos_ids: frozenset[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        known_ids = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        # Reads the vocabulary: not something to do while streams run.
        self._compiler = GrammarCompiler(tokenizer_path, min(vocab_size, known_ids), eos_ids)
        self._detokenizers: dict[SequenceKey, Detokenizer] = {}
        self._compiling: dict[RowKey, Request] = {}
        self._grammars: dict[SequenceKey, GrammarState] = {}
        self._masks: dict[SequenceKey, bytes] = {}

    def begin(self, request: Request, on_ready: Callable[[], None]) -> None:
        """`on_ready`: a grammar of this request can be taken; called on another thread."""
        submit = request.submit
        for sequence in request.sequences:
            detokenizer = Detokenizer(self._tokenizer, sequence.prompt, submit.stop, echo=submit.echo)
            for position, token in enumerate(sequence.token_ids[sequence.prompt_len :], start=1):
                # Another replica gave these, and their text was shown as far as it could be.
                detokenizer.push(token, may_stop=position >= sequence.sampling.min_tokens)
            self._detokenizers[sequence.key] = detokenizer
            sequence.waits_for_grammar = submit.grammar is not None
        if submit.grammar is not None:
            self._compiling[request.row] = request
            self._compiler.start(request.row, submit.grammar, on_ready)

    def take_grammars(self) -> list[tuple[RowKey, str]]:
        """Rows whose grammar is compiled by now may run. Returns those whose grammar is no good, and why."""
        refused = []
        for key, result in self._compiler.take_ready():
            request = self._compiling.pop(RowKey(*key[:2]), None)
            if request is None:
                continue
            if isinstance(result, GrammarError):
                refused.append((request.row, str(result)))
                continue
            try:
                for sequence in request.sequences:
                    self._follow_from(sequence, result.copy())
            except GrammarError as error:
                refused.append((request.row, str(error)))
        return refused

    def _follow_from(self, sequence: Sequence, state: GrammarState) -> None:
        """It may run, after what another replica gave of it. Raises GrammarError."""
        for token in sequence.token_ids[sequence.prompt_len :]:
            state.accept(token)
        self._masks[sequence.key] = state.mask()
        self._grammars[sequence.key] = state
        sequence.waits_for_grammar = False

    def masks(self, plan: StepPlan) -> dict[int, bytes]:
        """By slot, of rows that sample under a grammar."""
        return {row.slot: self._masks[row.key] for row in plan.rows if row.sample and row.key in self._masks}

    def push(self, sequence: Sequence, token: int) -> tuple[str, str]:
        """The newest token, already appended: text that may be shown, and the reason if the row ends here."""
        ends = token in self._eos_ids or token in sequence.stop_ids
        detokenizer = self._detokenizers[sequence.key]
        may_stop = sequence.output_len >= sequence.sampling.min_tokens
        text = "" if ends else detokenizer.push(token, may_stop=may_stop)
        if detokenizer.stopped_by:
            sequence.stopped_by = detokenizer.stopped_by
            return text, "stop"
        return text, "" if ends else self._follow(sequence, token)

    def prompt_text(self, sequence: Sequence) -> str:
        """Of a request that echoes its prompt, otherwise empty."""
        return self._detokenizers[sequence.key].prompt_text

    def end(self, sequence: Sequence) -> str:
        """Text that was held back. Nothing is kept of the row."""
        self._grammars.pop(sequence.key, None)
        self._masks.pop(sequence.key, None)
        if self._compiling.pop(sequence.key.row, None) is not None:
            self._compiler.forget(sequence.key.row)
        detokenizer = self._detokenizers.pop(sequence.key, None)
        if detokenizer is None:
            return ""
        unseen = "" if sequence.output_len else detokenizer.prompt_text
        return unseen + detokenizer.flush(is_cut=sequence.reason != "stop")

    def _follow(self, sequence: Sequence, token: int) -> str:
        state = self._grammars.get(sequence.key)
        if state is None:
            return ""
        try:
            state.accept(token)
            if state.is_complete:
                return "stop"
            self._masks[sequence.key] = state.mask()
        except GrammarError as error:
            sequence.message = f"the grammar cannot be followed: {error}"
            return "error"
        return ""

    def close(self) -> None:
        self._compiler.close()
