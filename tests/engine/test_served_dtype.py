"""bfloat16, which is served where the CPU computes it natively, says what float32 says."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from gpuworker.engine.block_pool import BLOCK_SIZE, blocks_for
from gpuworker.engine.model_runner import ModelRunner
from gpuworker.engine.plan import PlanRow, RowStart, SequenceKey, StepPlan
from tests.engine.prompts import prompt_texts
from tests.engine.support import GREEDY, key

pytestmark = pytest.mark.model

LONGEST_PROMPT, STEPS = 64, 24
SURE_MARGIN = 0.5  # between the two largest logits; the widest that bfloat16 was seen to turn over is 0.29
BLOCKS_PER_ROW = blocks_for(LONGEST_PROMPT + STEPS)


def logits_of(folder: Path, dtype: str, prompts: list[list[int]], forced: Tensor | None) -> Tensor:
    """[steps, rows, vocabulary] of the prompts and what follows: `forced` ids, else the most likely ones."""
    rows = range(len(prompts))
    runner = ModelRunner.load(
        folder,
        blocks=len(prompts) * BLOCKS_PER_ROW,
        max_rows=len(prompts),
        max_context_tokens=BLOCKS_PER_ROW * BLOCK_SIZE,
        dtype=dtype,
    )
    plan = StepPlan(
        [
            PlanRow(
                SequenceKey(*key(row)),
                row,
                0,
                ids,
                0,
                list(range(row * BLOCKS_PER_ROW, (row + 1) * BLOCKS_PER_ROW)),
                True,
            )
            for row, ids in enumerate(prompts)
        ],
        [RowStart(SequenceKey(*key(row)), row, ids, len(ids), GREEDY, []) for row, ids in enumerate(prompts)],
    )
    steps = []
    for step in range(STEPS):
        order, computed = runner.compute_logits(plan)
        logits = torch.empty_like(computed)
        logits[order] = computed
        steps.append(logits)
        following = logits.argmax(-1) if forced is None else forced[step]
        plan = StepPlan(
            [
                PlanRow(
                    SequenceKey(*key(row)),
                    row,
                    len(prompts[row]) + step,
                    [int(following[row])],
                    BLOCKS_PER_ROW,
                    [],
                    True,
                )
                for row in rows
            ],
            [],
        )
    return torch.stack(steps)


def test_bfloat16_agrees_with_float32_given_the_same_context(smollm2: Path) -> None:
    # Given what float32 says after the shorter of the prompts
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    encoded = [tokenizer.encode(text).ids for text in prompt_texts()]
    prompts = [ids for ids in encoded if len(ids) <= LONGEST_PROMPT]
    assert len(prompts) > 12
    exact = logits_of(smollm2, "float32", prompts, None)
    expected = exact.argmax(-1)
    # When bfloat16 is given the same ids
    served = logits_of(smollm2, "bfloat16", prompts, expected)
    agrees = served.argmax(-1) == expected
    # Then it says the same nearly everywhere, and everywhere that float32 was not in doubt
    largest = exact.topk(2, -1).values
    margin = largest[..., 0] - largest[..., 1]
    sure = margin > SURE_MARGIN
    assert sure.float().mean() > 0.6
    assert bool(agrees[sure].all())
    assert agrees.float().mean() > 0.92
