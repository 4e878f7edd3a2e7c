"""A long prompt arrives while streams decode: do they keep the target inter-token latency?

`python -m bench.pacing [--targets 60 100 200] [--runs 5] [--streams 8] [--prompt-tokens 1500]`
The rule, for the median run of each target: the worst gap between two tokens of a stream is at most the
target and 15 %, and every step computes a token of every stream. Exit status 1 when it is broken.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.engine import GATEWAY, engine_make, now_ms, submit_make
from bench.report import bench_report, median, percentile
from config.environment import weights_dir
from gpuworker.engine.block_pool import blocks_for
from gpuworker.engine.engine import Engine
from gpuworker.engine.model_runner import ModelRunner
from gpuworker.engine.plan import Moves, Sampled, StepPlan
from gpuworker.wire.messages import RowKey
from modelsvc.importer import model_import_demo
from policy.pacing import StepPacer

SLACK = 1.15
STREAM_PROMPT_TOKENS = 64
STREAM_OUTPUT_TOKENS = 4000  # never reached: streams are cancelled
MAX_CONTEXT_TOKENS = 8192
SETTLE_STEPS = 20


class RecordingRunner:
    """Passes plans on to the model and keeps them."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.plans: list[StepPlan] = []
        self.vocab_size = runner.vocab_size

    def move(self, moves: Moves) -> None:
        self._runner.move(moves)

    def run(self, plan: StepPlan) -> list[Sampled]:
        self.plans.append(plan)
        return self._runner.run(plan)

    def read_blocks(self, blocks: list[int]) -> list[bytes]:
        return self._runner.read_blocks(blocks)

    def write_blocks(self, blocks: list[int], contents: list[bytes]) -> None:
        self._runner.write_blocks(blocks, contents)


class TimedPacer(StepPacer):
    """Keeps what learning from a step takes."""

    def __init__(self, target_ms: float) -> None:
        super().__init__(target_ms)
        self.took_us: list[float] = []

    def observe(self, *measured: Any) -> None:
        begun = time.perf_counter()
        super().observe(*measured)
        self.took_us.append((time.perf_counter() - begun) * 1e6)


@dataclass(frozen=True, slots=True)
class Run:
    gaps_ms: list[float]
    prefill_ms: float
    chunks: list[int]
    left_out: int  # steps without one of the streams


class Stage:
    def __init__(self, engine: Engine, runner: RecordingRunner, streams: int) -> None:
        self.engine = engine
        self._runner = runner
        self._streams = range(streams)
        self._times: dict[int, list[float]] = {}
        self._next_sid = streams

    def begin_streams(self) -> None:
        for sid in self._streams:
            self._submit(sid, STREAM_PROMPT_TOKENS, STREAM_OUTPUT_TOKENS)
        while not all(self._times[sid] for sid in self._streams):
            self._step()

    def end_streams(self) -> None:
        for sid in self._streams:
            self.engine.cancel(RowKey(GATEWAY, sid), "cancelled")
        while self.engine.has_work():
            self._step()

    def settle(self) -> None:
        for _ in range(SETTLE_STEPS):
            self._step()

    def run_beside(self, prompt_tokens: int) -> Run:
        """From a prompt's arrival to its first token."""
        sid, self._next_sid = self._next_sid, self._next_sid + 1
        known = {stream: len(self._times[stream]) for stream in self._streams}
        self._runner.plans.clear()
        begun = now_ms()
        self._submit(sid, prompt_tokens, 1)
        while not self._times[sid]:
            self._step()
        rows = [{row.key.sid: len(row.tokens) for row in plan.rows} for plan in self._runner.plans]
        return Run(
            gaps_ms=[
                later - earlier
                for stream, count in known.items()
                for earlier, later in pairwise(self._times[stream][count - 1 :])
            ],
            prefill_ms=self._times[sid][0] - begun,
            chunks=[sizes[sid] for sizes in rows if sid in sizes],
            left_out=sum(not sizes.keys() >= set(self._streams) for sizes in rows),
        )

    def _submit(self, sid: int, prompt_tokens: int, output_tokens: int) -> None:
        self._times[sid] = []
        submit = submit_make(sid, self._runner.vocab_size, prompt_tokens, output_tokens, 0.0)
        self.engine.submit(RowKey(GATEWAY, sid), submit, now_ms())

    def _step(self) -> None:
        output = self.engine.step(now_ms)
        at = now_ms()
        for columns in output.gateways.values():
            for sid, count in zip(columns.sids, columns.counts, strict=True):
                self._times[sid] += [at] * count


def blocks_of(prompt_tokens: int, streams: int) -> int:
    """Enough for streams of 1,000 tokens beside the prompt."""
    return blocks_for(prompt_tokens) + (streams + 1) * blocks_for(1000)


def measure(
    runner: ModelRunner, folder: Path, target_ms: float, options: argparse.Namespace
) -> dict[str, Any]:
    """A new engine and pacer; two prompts teach it, the streams begin anew before each measured one."""
    recorder, pacer = RecordingRunner(runner), TimedPacer(target_ms)
    rows, blocks = options.streams + 1, blocks_of(options.prompt_tokens, options.streams)
    engine = engine_make(recorder, folder, pacer, blocks=blocks, rows=rows, context_tokens=MAX_CONTEXT_TOKENS)
    runs = []
    for _ in range(options.runs + 2):
        stage = Stage(engine, recorder, options.streams)
        stage.begin_streams()
        stage.settle()
        runs.append(stage.run_beside(options.prompt_tokens))
        stage.end_streams()
    engine.close()
    first, runs = runs[0], runs[2:]
    chunks = [size for run in runs for size in run.chunks[:-1]]
    cost = pacer.cost
    worst = median([max(run.gaps_ms) for run in runs])
    left_out = sum(run.left_out for run in runs)
    holds = worst <= SLACK * target_ms and not left_out
    return {
        "target ms": target_ms,
        "worst gap ms": worst,
        "of all runs": max(max(run.gaps_ms) for run in runs),
        "unlearnt": max(first.gaps_ms),
        "gap p95": median([percentile(run.gaps_ms, 0.95) for run in runs]),
        "prefill ms": median([run.prefill_ms for run in runs]),
        "steps": median([len(run.chunks) for run in runs]),
        "chunk": f"{min(chunks)}-{max(chunks)}",
        "left out": left_out,
        "base+row+tok ms": f"{cost.base_ms:.1f}+{cost.row_ms:.2f}+{cost.token_ms:.2f}",
        "ctx+pair us": f"{1000 * cost.context_ms:.2f}+{1000 * cost.pair_ms:.2f}",
        "pacer us": median(pacer.took_us),
        "rule": "holds" if holds else "BROKEN",
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", type=float, nargs="+", default=[60.0, 100.0, 200.0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=1500)
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weights", type=Path, help="model folder; the demo model when absent")
    options = parser.parse_args()
    folder = options.weights or weights_dir() / model_import_demo(weights_dir()).digest
    runner = ModelRunner.load(
        folder,
        blocks=blocks_of(options.prompt_tokens, options.streams),
        max_rows=options.streams + 1,
        max_context_tokens=MAX_CONTEXT_TOKENS,
        dtype=options.dtype,
        threads=options.threads,
    )
    rows = [measure(runner, folder, target_ms, options) for target_ms in options.targets]
    title = f"{options.prompt_tokens} prompt tokens beside {options.streams} streams, {options.runs} runs"
    bench_report("pacing", title, rows, dtype=str(runner.dtype), threads=options.threads)
    return 0 if all(row["rule"] == "holds" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
