"""A scheduler stepped by hand, for tests."""

from gpuworker.engine.budget import StepLimits
from gpuworker.engine.kv_manager import KVManager
from gpuworker.engine.plan import Sampled, SequenceKey, StepPlan, StepResult
from gpuworker.engine.preemption import Recovery, RecoveryMode
from gpuworker.engine.scheduler import Scheduler
from gpuworker.engine.sequence import Sequence
from gpuworker.wire.messages import TokenLogprobs
from policy.pacing import StepPacer
from policy.prefix import prefix_root
from tests.engine.support import PagedEchoRunner, key, submit_make


class Bench:
    """A scheduler on a paged memory; every step is checked."""

    def __init__(
        self,
        *,
        blocks: int,
        max_rows: int = 8,
        max_step_tokens: int = 64,
        host_blocks: int = 0,
        prefix_cache: bool = False,
        recovery: RecoveryMode = "recompute",
        pacer: StepPacer | None = None,
    ) -> None:
        limits = StepLimits(pacer, max_rows=max_rows, max_step_tokens=max_step_tokens)
        self.kv = KVManager(blocks, host_blocks=host_blocks, prefix_cache=prefix_cache)
        self.recovery = Recovery(limits.cost, recovery)
        self.scheduler = Scheduler(
            self.kv,
            max_rows=max_rows,
            max_context_tokens=4096,
            limits=limits,
            recovery=self.recovery,
        )
        self.runner = PagedEchoRunner()
        self.now_ms = 0.0
        self.outputs: dict[int, list[int]] = {}  # of choice 0
        self.choices: dict[SequenceKey, list[int]] = {}

    def submit(
        self,
        sid: int,
        prompt: int | list[int],
        max_tokens: int = 100,
        *,
        tenant: str = "tenant",
        klass: str = "interactive",
        weight: float = 1.0,
        parent: Sequence | None = None,
        choice: int = 0,
    ) -> Sequence:
        """`prompt`: its ids, or how many of the row's own."""
        ids = [1000 * sid + index for index in range(prompt)] if isinstance(prompt, int) else prompt
        submit = submit_make(sid, ids, max_tokens=max_tokens, tenant=tenant, klass=klass, weight=weight)
        sequence = Sequence(
            key(sid),
            submit,
            choice=choice,
            parent=parent,
            max_tokens=max_tokens,
            stop_ids=frozenset(),
            chain_root=prefix_root(b"secret", tenant, "digest", "", "test"),
            now_ms=self.now_ms,
        )
        self.scheduler.submit(sequence)
        return sequence

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule(self.now_ms)
        self.runner.move(plan.moves)
        self.finish(plan, self.runner.run(plan))
        return plan

    def finish(self, plan: StepPlan, sampled: list[Sampled]) -> None:
        rows = {row.key: result for row, result in zip(plan.rows, sampled, strict=True)}
        self.scheduler.apply(plan, StepResult(rows, {}), self.now_ms, self)
        self.scheduler.check_integrity()

    def run_to_the_end(self, limit: int = 2000) -> list[StepPlan]:
        plans = []
        while self.scheduler.has_work():
            plans.append(self.step())
            self.scheduler.take_finished()
            assert len(plans) < limit, "no progress"
        return plans

    def token(self, sequence: Sequence, sampled: Sampled) -> str:
        self.choices.setdefault(sequence.key, []).append(sampled.token)
        if not sequence.key.choice:
            self.outputs.setdefault(sequence.key.sid, []).append(sampled.token)
        return ""

    def prompt_logprobs(self, sequence: Sequence, first: int, tokens: list[TokenLogprobs]) -> None:
        raise AssertionError("nobody asked")


def counts(plan: StepPlan) -> dict[int, int]:
    return {row.key.sid: len(row.tokens) for row in plan.rows}
