"""The engine: requests in, one step at a time, text out. Joins scheduler, runner, grammars and detokenizer.

Not thread-safe: one loop owns it. Nothing here imports torch; the runner brings it.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from gpuworker.engine.budget import MAX_STEP_TOKENS, StepLimits
from gpuworker.engine.cached_blocks import CacheEvents
from gpuworker.engine.intake import submit_problem
from gpuworker.engine.isolation import RunnerLost, run_isolated
from gpuworker.engine.kv_manager import KVManager
from gpuworker.engine.machine_time import StepMeter
from gpuworker.engine.output import StepOutput
from gpuworker.engine.plan import Runner, StepPlan
from gpuworker.engine.preemption import Recovery, RecoveryMode
from gpuworker.engine.request import Request
from gpuworker.engine.scheduler import Scheduler
from gpuworker.engine.stats import Counters, EngineStats
from gpuworker.engine.step_results import StepResults
from gpuworker.engine.text import TextStage
from gpuworker.engine.transfer import PrefillResult, blocks_export, blocks_import
from gpuworker.wire.messages import RowKey, Submit, unpack_ids
from policy.flow import Flow
from policy.pacing import StepPacer
from policy.prefix import prefix_root


class Unservable(Exception):
    """This engine can never run the request. Nothing was computed, nothing is held."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """`secret`, `digest`, `adapter` and `kv_dtype` name what prefixes belong to, see `policy.prefix`."""

    secret: bytes
    digest: str = ""
    kv_dtype: str = ""
    adapter: str = ""
    is_shared: bool = True  # whether rows find each other's prefixes
    host_blocks: int = 0
    recovery: RecoveryMode = "auto"


class Engine:
    """`wake` is called, on another thread, when a row that waited for its grammar may go on."""

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
        cache: CacheOptions,
        max_step_tokens: int = MAX_STEP_TOKENS,
    ) -> None:
        self._runner = runner
        self._pacer = pacer
        self._cache = cache
        limits = StepLimits(pacer, max_rows=max_rows, max_step_tokens=max_step_tokens)
        self._recovery = Recovery(limits.cost, cache.recovery)
        self._kv = KVManager(blocks, host_blocks=cache.host_blocks, prefix_cache=cache.is_shared)
        self._scheduler = Scheduler(
            self._kv,
            max_rows=max_rows,
            max_context_tokens=max_context_tokens,
            limits=limits,
            recovery=self._recovery,
        )
        tokenizer = Tokenizer.from_file(str(tokenizer_path))
        self._text = TextStage(tokenizer, tokenizer_path, runner.vocab_size, eos_ids)
        self._eos_ids = eos_ids
        self._requests: dict[RowKey, Request] = {}
        self._counters = Counters()
        self._meter = StepMeter(pacer, self._counters)
        self.wake: Callable[[], None] = lambda: None
        # When the present forward began, and what it is to last; None between two. Read by other threads.
        self.running_step: tuple[float, float] | None = None
        self._failure: RunnerLost | None = None

    @property
    def max_servable_tokens(self) -> int:
        """Prompt and output of one request together."""
        return self._scheduler.max_servable_tokens

    @property
    def kv_dtype(self) -> str:
        """Empty when prefixes are not shared."""
        return self._cache.kv_dtype if self._cache.is_shared else ""

    # -- requests -----------------------------------------------------------------------------------------

    def submit(
        self, row: RowKey, submit: Submit, now_ms: float, prefilled: PrefillResult | None = None
    ) -> None:
        """Raises Unservable. `max_tokens` above the servable bound is lowered to it. `prefilled`: what
        another replica computed of the prompt."""
        request = self._begin(row, submit, now_ms, choices=submit.n, max_tokens=submit.max_tokens)
        if prefilled is not None:
            blocks_import(self._kv, self._runner, request.first, prefilled)
        self._text.begin(request, lambda: self.wake())
        for sequence in request.sequences:
            self._scheduler.submit(sequence)

    def prefill(self, row: RowKey, submit: Submit, now_ms: float) -> None:
        """Compute the prompt for another replica: the output of the step that ends it has its blocks. Raises
        Unservable."""
        whole = msgspec.structs.replace(submit, emitted=0)  # here all of it is prompt
        request = self._begin(row, whole, now_ms, choices=1, max_tokens=0)
        request.is_export = True
        self._scheduler.submit(request.first)

    def _begin(self, row: RowKey, submit: Submit, now_ms: float, *, choices: int, max_tokens: int) -> Request:
        if len(submit.prompt) % 4:
            raise Unservable("unservable", "the prompt is not a list of token ids")
        prompt = unpack_ids(submit.prompt)
        room = self.max_servable_tokens - len(prompt) + submit.emitted
        problem = submit_problem(submit, prompt, room=room, vocab_size=self._runner.vocab_size)
        if problem is None and row in self._requests:
            problem = "unservable", "the row is already known"
        if problem is not None:
            raise Unservable(*problem)
        cache = self._cache
        root = prefix_root(
            cache.secret, submit.tenant, cache.digest, cache.adapter, cache.kv_dtype, submit.cache_salt
        )
        stop_ids = self._eos_ids.union(submit.stop_ids)
        request = Request(
            row,
            submit,
            choices=choices,
            max_tokens=min(max_tokens, room),
            stop_ids=stop_ids - self._eos_ids if submit.ignore_eos else stop_ids,
            chain_root=root,
            now_ms=now_ms,
        )
        self._requests[row] = request
        return request

    def cancel(self, row: RowKey, reason: str, message: str = "") -> None:
        """In any state; unknown and ended rows are ignored. The next step's output holds the row's End."""
        if request := self._requests.get(row):
            for key in request.keys:
                self._scheduler.cancel(key, reason, message)

    def cancel_gateway(self, gateway: str, reason: str) -> None:
        for row in [row for row in self._requests if row.gateway == gateway]:
            self.cancel(row, reason)

    def hold(self, row: RowKey, held: bool) -> None:
        """A held row computes nothing until it is released: its client does not keep up."""
        if request := self._requests.get(row):
            for key in request.keys:
                self._scheduler.hold(key, held)

    def yield_also(self, flows: frozenset[Flow]) -> None:
        """These flows, and no others, are over their share in the whole fleet: they yield here too."""
        self._scheduler.yield_also(flows)

    def has_work(self) -> bool:
        return self._scheduler.has_work()

    @property
    def next_deadline_ms(self) -> float | None:
        """When a step is due at the latest, even if there is no work."""
        return self._scheduler.next_deadline_ms

    def fail(self, failure: RunnerLost) -> None:
        """From any thread: the next step raises it, and is due at once."""
        self._failure = failure
        self.wake()

    # -- one step -----------------------------------------------------------------------------------------

    def step(self, now_ms: Callable[[], float], drain_inbox: Callable[[], None] = lambda: None) -> StepOutput:
        """One forward for all rows that are due. `drain_inbox` may submit and cancel: it is called before
        the step is planned and again before its results are taken, so a cancel never waits for a step.
        Raises RunnerLost."""
        drain_inbox()
        if self._failure is not None:
            raise self._failure
        self._counters.step += 1
        output = StepOutput(self._counters.step)
        self._take_grammars(output)
        begun_ms = now_ms()
        plan = self._scheduler.schedule(begun_ms)
        plan = msgspec.structs.replace(plan, masks=self._text.masks(plan))
        if plan.moves:
            planned_ms = now_ms()
            self._runner.move(plan.moves)
            swapped = len(plan.moves.to_host) + len(plan.moves.to_device)
            self._recovery.observe(swapped, now_ms() - planned_ms)
        self.running_step = now_ms(), self._predict_ms(plan)
        result = run_isolated(self._runner, plan)
        self.running_step = None
        ended_ms = now_ms()
        drain_inbox()
        output.work = self._meter.measure(
            plan, self._scheduler.costs, begun_ms, ended_ms, has_failed=bool(result.failed)
        )
        begun = [self._scheduler.sequence(start.key) for start in plan.starts]
        results = StepResults(self._requests, self._text, self._counters, output)
        self._scheduler.apply(plan, result, ended_ms, results)
        for sequence in begun:
            results.started(sequence)
        for sequence in self._scheduler.take_finished():
            if results.ended(sequence, ended_ms).is_export:
                is_whole = sequence.reason == "length"
                exported = blocks_export(self._kv, self._runner, sequence) if is_whole else None
                output.exports.append((sequence.key.row, exported))
        self._meter.end(ended_ms, left_work=self._scheduler.has_work())
        return output

    def _predict_ms(self, plan: StepPlan) -> float:
        """0 when nobody knows."""
        if self._pacer is None:
            return 0.0
        tokens = plan.decode_rows, plan.prefill_tokens, plan.context_tokens, plan.prefill_pairs
        return self._pacer.predict_ms(*tokens)

    def _take_grammars(self, output: StepOutput) -> None:
        for row, problem in self._text.take_grammars():
            output.refused.append((row, "invalid_grammar", problem))
            self._requests[row].is_refused = True
            self.cancel(row, "error", problem)

    # -- what it tells of itself --------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        scheduler, pool = self._scheduler, self._kv.pool
        return EngineStats(
            running=scheduler.running,
            waiting=scheduler.waiting,
            pending_prefill_tokens=scheduler.pending_prefill_tokens,
            blocks=pool.blocks,
            free_blocks=pool.free_blocks,
            cached_blocks=pool.cached_blocks,
            paused=scheduler.paused,
            preemptions=scheduler.preemptions,
            swaps=scheduler.swaps,
            cost=None if self._pacer is None else self._pacer.cost,
            row_limit=scheduler.row_limit,
            **dataclasses.asdict(self._counters),
        )

    def take_cache_events(self) -> CacheEvents:
        """Prefix blocks that came and went since the last call."""
        return self._kv.pool.take_events()

    def forget_cached(self) -> None:
        """Empties the prefix cache."""
        self._kv.pool.clear_cache()
        self._kv.pool.take_events()

    def check_integrity(self) -> None:
        """Raises PoolCorrupt. For idle moments and tests."""
        self._scheduler.check_integrity()

    def close(self) -> None:
        self._text.close()
