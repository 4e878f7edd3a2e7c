"""The engine: requests in, one step at a time, text out. Joins scheduler, runner and detokenizer.

Not thread-safe: one loop owns it. Nothing here imports torch; the runner brings it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from gpuworker.engine.detokenizer import Detokenizer
from gpuworker.engine.isolation import run_isolated
from gpuworker.engine.output import StepOutput
from gpuworker.engine.plan import Runner
from gpuworker.engine.sampling import sampling_problem
from gpuworker.engine.scheduler import Scheduler
from gpuworker.engine.sequence import Sequence
from gpuworker.wire.messages import RowKey, Submit, unpack_ids
from policy.pacing import StepPacer

SILENT_ENDS = frozenset({"cancelled", "gateway_lost"})  # nobody reads the text held back


class Unservable(Exception):
    """This engine can never run the request. Nothing was computed, nothing is held."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class EngineStats:
    running: int  # rows holding KV
    waiting: int
    pending_prefill_tokens: int
    blocks: int
    free_blocks: int
    step: int
    step_ms: float  # the last step
    batch_rows: int  # the last step
    preemptions: int  # since start
    output_tokens: int  # since start


class Engine:
    def __init__(
        self,
        runner: Runner,
        tokenizer_path: Path,
        *,
        blocks: int,
        max_rows: int,
        max_context_tokens: int,
        pacer: StepPacer | None,
        eos_ids: frozenset[int],
    ) -> None:
        self._runner = runner
        self._tokenizer = Tokenizer.from_file(str(tokenizer_path))
        self._scheduler = Scheduler(
            blocks=blocks, max_rows=max_rows, max_context_tokens=max_context_tokens, pacer=pacer
        )
        self._pacer = pacer
        self._eos_ids = eos_ids
        self._detokenizers: dict[RowKey, Detokenizer] = {}
        self._step = 0
        self._step_ms = 0.0
        self._batch_rows = 0
        self._output_tokens = 0

    @property
    def max_servable_tokens(self) -> int:
        """Prompt and output of one request together."""
        return self._scheduler.max_servable_tokens

    def submit(self, row: RowKey, submit: Submit, now_ms: float) -> None:
        """Raises Unservable. `max_tokens` above the servable bound is lowered to it."""
        prompt = unpack_ids(submit.prompt)
        room = self.max_servable_tokens - len(prompt)
        problem = sampling_problem(submit.sampling)
        if not prompt:
            problem = "the prompt is empty"
        elif room < 1:
            problem = f"the prompt has {len(prompt)} tokens, {self.max_servable_tokens - 1} can be served"
        elif max(prompt) >= self._runner.vocab_size:
            problem = f"token id {max(prompt)} is outside the vocabulary of {self._runner.vocab_size}"
        elif submit.max_tokens < 1:
            problem = f"max_tokens is {submit.max_tokens}"
        elif row in self._detokenizers:
            problem = "the row is already known"
        if problem:
            raise Unservable("unservable", problem)
        stop_ids = frozenset() if submit.ignore_eos else self._eos_ids.union(submit.stop_ids)
        self._scheduler.submit(
            Sequence(row, submit, max_tokens=min(submit.max_tokens, room), stop_ids=stop_ids, now_ms=now_ms)
        )
        self._detokenizers[row] = Detokenizer(self._tokenizer, prompt, submit.stop)

    def cancel(self, row: RowKey, reason: str) -> None:
        """In any state; unknown and ended rows are ignored. The next step's output holds the row's End."""
        self._scheduler.cancel(row, reason)

    def cancel_gateway(self, gateway: str, reason: str) -> None:
        for row in self._scheduler.row_keys():
            if row.gateway == gateway:
                self._scheduler.cancel(row, reason)

    def has_work(self) -> bool:
        return self._scheduler.has_work()

    def step(self, now_ms: Callable[[], float], drain_inbox: Callable[[], None] = lambda: None) -> StepOutput:
        """One forward for all rows that are due. `drain_inbox` may submit and cancel: it is called before
        the step is planned and again before its results are taken, so a cancel never waits for a step."""
        drain_inbox()
        begun_ms = now_ms()
        plan = self._scheduler.schedule(begun_ms)
        result = run_isolated(self._runner, plan)
        ended_ms = now_ms()
        drain_inbox()

        self._step += 1
        output = StepOutput(self._step)
        if plan.rows:
            self._step_ms, self._batch_rows = ended_ms - begun_ms, len(plan.rows)
            if self._pacer is not None and not result.failed:
                self._pacer.observe(plan.decode_rows, plan.prefill_tokens, self._step_ms)
        else:
            self._batch_rows = 0

        def deliver(sequence: Sequence, token: int) -> bool:
            return self._deliver(output, sequence, token)

        begun = [self._scheduler.sequence(start.key) for start in plan.starts]
        self._scheduler.apply(plan, result, ended_ms, deliver)
        for sequence in begun:
            if not sequence.preemptions:
                output.add_checkpoint(sequence)
        for sequence in self._scheduler.take_finished():
            detokenizer = self._detokenizers.pop(sequence.key)
            tail = "" if sequence.reason in SILENT_ENDS else detokenizer.flush()
            output.add_end(sequence, tail, ended_ms)
        return output

    def _deliver(self, output: StepOutput, sequence: Sequence, token: int) -> bool:
        """Whether a stop string ended the row's text."""
        self._output_tokens += 1
        if token in self._eos_ids or token in sequence.stop_ids:
            output.add_token(sequence, "")
            return False
        detokenizer = self._detokenizers[sequence.key]
        output.add_token(sequence, detokenizer.push(token))
        return detokenizer.stopped

    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        return EngineStats(
            running=scheduler.running,
            waiting=scheduler.waiting,
            pending_prefill_tokens=scheduler.pending_prefill_tokens,
            blocks=scheduler.pool.blocks,
            free_blocks=scheduler.pool.free_blocks,
            step=self._step,
            step_ms=self._step_ms,
            batch_rows=self._batch_rows,
            preemptions=scheduler.preemptions,
            output_tokens=self._output_tokens,
        )

    def check_integrity(self) -> None:
        """Raises PoolCorrupt. For idle moments and tests."""
        self._scheduler.check_integrity()
