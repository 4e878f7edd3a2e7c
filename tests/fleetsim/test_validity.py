"""The simulator's replica against the worker's own scheduler: one workload, the same costs, no clock."""

from random import Random

import pytest

from fleetsim.arrival import Arrival
from fleetsim.engine import Engine
from fleetsim.replica import Replica
from fleetsim.replica_model import ReplicaModel
from fleetsim.report.result import Percentiles, percentiles
from fleetsim.rows import Row
from fleetsim.workloads import workload_of
from gpuworker.engine.plan import StepPlan, StepResult
from gpuworker.engine.scripted_runner import ScriptedRunner
from gpuworker.engine.sequence import Sequence
from policy.flow import Flow
from policy.pacing import StepPacer
from policy.step_cost import StepCost
from tests.engine.scheduler_bench import Bench

TARGET_MS = 100.0
# SmolLM2-135M on two cores (docs/policy.md), but without the cost of pairs.
COST = StepCost(base_ms=13.0, row_ms=0.65, token_ms=0.35, context_ms=0.0019)
BLOCKS = 4000
MODEL = ReplicaModel(
    name="small",
    cost=COST,
    kv_tokens=BLOCKS * 16,
    max_rows=256,
    target_ms=TARGET_MS,
    margin_ms=0.005 * TARGET_MS,
    min_prefill_tokens=16,
    max_prefill_tokens=512,
    output_tokens_per_s=500,
    prompt_tokens_per_s=2500,
    usd_per_hour=1.0,
)


def arrivals(seed: int, *, noisy: bool) -> list[Arrival]:
    lengths = {"prompts": {"mean": 150, "cv": 0.8, "least": 4, "most": 900}}
    answers = {"answers": {"mean": 60, "cv": 0.8, "least": 4, "most": 300}}
    streams = [{"kind": "stream", "name": "tenant", "rate": 6.0, "end_s": 40, "tenants": 5}]
    bursts = [{"kind": "burst", "name": "noisy", "noise": True, "at_s": 10, "requests": 60}]
    bursts = [{**burst, "prompts": 100, "answers": 400} for burst in bursts] if noisy else []
    parts = [{**stream, **lengths, **answers} for stream in streams] + bursts
    return list(workload_of({"workload": parts}).arrivals(seed))


def in_scheduler(requests: list[Arrival]) -> list[float]:
    """First-token times of requests that are no noise, in milliseconds."""
    pacer = StepPacer(TARGET_MS)
    bench = Bench(blocks=BLOCKS, max_rows=256, max_step_tokens=512, pacer=pacer)
    runner = ScriptedRunner()
    waiting = list(requests)
    sequences: list[tuple[Arrival, Sequence]] = []
    while waiting or bench.scheduler.has_work():
        if waiting and not bench.scheduler.has_work():
            bench.now_ms = max(bench.now_ms, waiting[0].at_us / 1000)
        while waiting and waiting[0].at_us / 1000 <= bench.now_ms:
            request = waiting.pop(0)
            sid = len(sequences) + 1
            sequence = bench.submit(
                sid, request.prompt_tokens, max_tokens=request.output_tokens, tenant=request.tenant
            )
            sequences.append((request, sequence))
        plan = bench.scheduler.schedule(bench.now_ms)
        took_ms = step_ms(plan)
        bench.now_ms += took_ms
        runner.move(plan.moves)
        rows = {row.key: sampled for row, sampled in zip(plan.rows, runner.run(plan), strict=True)}
        bench.scheduler.apply(plan, StepResult(rows, {}), bench.now_ms, bench)
        bench.scheduler.take_finished()
        if plan.rows:
            pacer.observe(
                plan.decode_rows, plan.prefill_tokens, plan.context_tokens, took_ms, plan.prefill_pairs
            )
    return [
        sequence.first_token_ms - request.at_us / 1000
        for request, sequence in sequences
        if request.tenant != "noisy" and sequence.first_token_ms is not None
    ]


def step_ms(plan: StepPlan) -> float:
    return COST.predict_ms(plan.decode_rows, plan.prefill_tokens, plan.context_tokens, plan.prefill_pairs)


def in_simulator(requests: list[Arrival]) -> list[float]:
    engine = Engine()
    first_ms: dict[int, float] = {}
    replica = Replica("r", MODEL, lambda flow, gap_us, rows: None)

    def begin() -> None:
        engine.at(engine.now_us + replica.step_begin(engine.now_us), end)

    def end() -> None:
        for row in replica.step_end(engine.now_us).prefilled:
            first_ms.setdefault(row.number, engine.now_ms)
        if replica.has_work:
            begin()

    def arrive(number: int) -> None:
        request = requests[number]
        flow = Flow(request.tenant, request.klass)
        row = Row(number, flow, request.weight, request.prompt_tokens, request.output_tokens)
        replica.place(row, engine.now_us)
        if not replica.is_busy:
            begin()

    for number, request in enumerate(requests):
        engine.at(request.at_us, arrive, number)
    engine.run(requests[-1].at_us + 600_000_000)
    return [
        first_ms[number] - request.at_us / 1000
        for number, request in enumerate(requests)
        if request.tenant != "noisy"
    ]


def difference(simulated: Percentiles, real: Percentiles) -> tuple[float, float]:
    return abs(simulated.p50 / real.p50 - 1), abs(simulated.p95 / real.p95 - 1)


@pytest.mark.parametrize("noisy", [False, True])
def test_first_tokens_come_when_the_workers_scheduler_gives_them(noisy: bool) -> None:
    requests = arrivals(Random(5).randrange(1000), noisy=noisy)
    simulated, real = percentiles(in_simulator(requests)), percentiles(in_scheduler(requests))
    assert simulated.count == real.count > 200
    assert max(difference(simulated, real)) < 0.15, (simulated, real)
