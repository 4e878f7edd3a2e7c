"""What steps of the real model last, for `python -m fleetsim.calibrate`: a varied load, every step measured.

`python -m bench.steps [--requests 60] [--threads 2] [--weights DIR]` writes `bench/steps.jsonl` below the
state folder.
"""

import argparse
import json
import random
import time
from pathlib import Path

from bench.engine import GATEWAY, engine_make, now_ms, submit_make
from bench.report import bench_folder
from config.environment import weights_dir
from gpuworker.engine.block_pool import blocks_for
from gpuworker.engine.model_runner import ModelRunner
from gpuworker.engine.plan import Moves, Runner, Sampled, StepPlan
from gpuworker.wire.messages import RowKey
from modelsvc.importer import model_import_demo
from policy.pacing import StepPacer

ROWS, CONTEXT_TOKENS, TARGET_MS = 16, 768, 100.0


class MeasuringRunner:
    """Passes plans on and keeps what each step held and lasted."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.steps: list[dict[str, float]] = []

    @property
    def vocab_size(self) -> int:
        return self._runner.vocab_size

    def move(self, moves: Moves) -> None:
        self._runner.move(moves)

    def run(self, plan: StepPlan) -> list[Sampled]:
        begun = time.perf_counter()
        sampled = self._runner.run(plan)
        self.steps.append(
            {
                "decode_rows": plan.decode_rows,
                "prefill_tokens": plan.prefill_tokens,
                "context_tokens": plan.context_tokens,
                "prefill_pairs": plan.prefill_pairs,
                "step_ms": 1000 * (time.perf_counter() - begun),
            }
        )
        return sampled

    def read_blocks(self, blocks: list[int]) -> list[bytes]:
        return self._runner.read_blocks(blocks)

    def write_blocks(self, blocks: list[int], contents: list[bytes]) -> None:
        self._runner.write_blocks(blocks, contents)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weights", type=Path, help="model folder; the demo model when absent")
    options = parser.parse_args()
    folder = options.weights or weights_dir() / model_import_demo(weights_dir()).digest
    blocks = (ROWS + 1) * (blocks_for(CONTEXT_TOKENS) + 1)
    loaded = ModelRunner.load(
        folder, blocks=blocks, max_rows=ROWS, max_context_tokens=CONTEXT_TOKENS, threads=options.threads
    )
    runner = MeasuringRunner(loaded)
    engine = engine_make(
        runner, folder, StepPacer(TARGET_MS), blocks=blocks, rows=ROWS, context_tokens=CONTEXT_TOKENS
    )
    rng = random.Random(7)
    waiting = list(range(options.requests))
    while waiting or engine.has_work():
        if waiting and (rng.random() < 0.08 or not engine.has_work()):
            sid = waiting.pop()
            prompt_tokens, output_tokens = rng.randint(8, 512), rng.randint(8, 200)
            submit = submit_make(sid, runner.vocab_size, prompt_tokens, output_tokens, 0.0)
            engine.submit(RowKey(GATEWAY, sid), submit, now_ms())
        engine.step(now_ms)
    engine.close()
    path = bench_folder() / "steps.jsonl"
    path.write_text("".join(json.dumps(step) + "\n" for step in runner.steps))
    print(f"{len(runner.steps)} steps, written to {path}")


if __name__ == "__main__":
    main()
