"""`python -m fleetsim.calibrate STEPS MODEL`: the `measured` replica model, fitted to steps of our worker.

STEPS is what `make bench SUITE=steps` wrote: a step in each line of JSON, with decode_rows, prefill_tokens,
context_tokens, prefill_pairs, step_ms. MODEL is the file that a scenario names as `fleet.measured`.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fleetsim.replica_model import ReplicaModel, replica_model_write
from policy.step_cost import StepCost, StepModel

FIELDS = ("decode_rows", "prefill_tokens", "context_tokens", "prefill_pairs")
SCALE = StepCost(1, 4, 128, 16_384, 65_536)
MARGIN = 0.01  # of the target
MEAN_CONTEXT_TOKENS = 1_000  # of rows, where the model is asked how much it can generate


@dataclass(frozen=True, slots=True)
class Step:
    decode_rows: int
    prefill_tokens: int
    context_tokens: int
    prefill_pairs: int
    step_ms: float


def steps_read(path: Path) -> list[Step]:
    """Raises OSError; ValueError naming the line that is no step."""
    steps = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            fields = json.loads(line)
            rows, tokens, context, pairs = (int(fields[name]) for name in FIELDS)
            steps.append(Step(rows, tokens, context, pairs, float(fields["step_ms"])))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number} is no step: {error!r}") from error
    return steps


def cost_fit(steps: Iterable[Step]) -> StepCost:
    """As the worker's pacer learns it, step by step; what it knows at the end."""
    steps = list(steps)
    if not steps:
        raise ValueError("there are no steps to learn from")
    longest_ms = max(step.step_ms for step in steps)
    guess = StepCost(longest_ms / 4, longest_ms / 128, longest_ms / 128, longest_ms / 1e6, longest_ms / 1e7)
    model = StepModel(SCALE, guess)
    for step in steps:
        model.observe(
            step.decode_rows, step.prefill_tokens, step.context_tokens, step.prefill_pairs, step.step_ms
        )
    return model.cost


def error_of(cost: StepCost, steps: Iterable[Step]) -> float:
    """Mean absolute error of the predictions, as a part of what was measured."""
    errors = [
        abs(
            cost.predict_ms(step.decode_rows, step.prefill_tokens, step.context_tokens, step.prefill_pairs)
            / step.step_ms
            - 1
        )
        for step in steps
    ]
    return sum(errors) / len(errors)


def model_of(
    cost: StepCost, *, target_ms: float, kv_tokens: int, max_rows: int, usd_per_hour: float
) -> ReplicaModel:
    """What the replica does when it does nothing else comes from the costs."""
    row_ms = max(cost.decode_ms(MEAN_CONTEXT_TOKENS), 1e-6)
    rows = min(max(1, int((target_ms - cost.base_ms) / row_ms)), max_rows)
    most_tokens = 512
    prefill_ms = cost.base_ms + cost.chunk_ms(most_tokens, 0)
    return ReplicaModel(
        name="measured",
        cost=cost,
        kv_tokens=kv_tokens,
        max_rows=max_rows,
        target_ms=target_ms,
        margin_ms=MARGIN * target_ms,
        min_prefill_tokens=16,
        max_prefill_tokens=most_tokens,
        output_tokens_per_s=1000 * rows / (cost.base_ms + rows * row_ms),
        prompt_tokens_per_s=1000 * most_tokens / prefill_ms,
        usd_per_hour=usd_per_hour,
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="fleetsim.calibrate", description=__doc__.splitlines()[0])
    parser.add_argument("steps", type=Path, help="file of measured steps, one of JSON in a line")
    parser.add_argument("model", type=Path, help="file to write")
    parser.add_argument("--target-ms", type=float, default=100.0, help="inter-token latency")
    parser.add_argument("--kv-tokens", type=int, default=65_536)
    parser.add_argument("--max-rows", type=int, default=64)
    parser.add_argument("--usd-per-hour", type=float, default=0.1)
    options = parser.parse_args(arguments)
    try:
        steps = steps_read(options.steps)
        cost = cost_fit(steps)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"fleetsim.calibrate: {error}\n")
        return 2
    model = model_of(
        cost,
        target_ms=options.target_ms,
        kv_tokens=options.kv_tokens,
        max_rows=options.max_rows,
        usd_per_hour=options.usd_per_hour,
    )
    replica_model_write(model, options.model)
    sys.stdout.write(f"{cost}\nmean error {100 * error_of(cost, steps):.1f} % of {len(steps)} steps\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
