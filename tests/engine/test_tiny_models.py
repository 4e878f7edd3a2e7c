"""Random tiny models of the Llama family: logits within 1e-4 of transformers, however a prompt is chunked."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gpuworker.engine.block_pool import BLOCK_SIZE
from gpuworker.engine.model_runner import ModelRunner
from gpuworker.engine.plan import PlanRow, RowStart, StepPlan
from tests.engine.support import GREEDY, key

COMMON = {
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "grouped-tied": {
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "tie_word_embeddings": True,
    },
    "multi-head-untied": {"num_attention_heads": 4, "tie_word_embeddings": False},
    "multi-query": {"num_attention_heads": 4, "num_key_value_heads": 1},
    "llama3-rope": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_theta": 5e5,
        "rope_scaling": LLAMA3_ROPE,
    },
    "mistral": {
        "model_type": "mistral",
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "sliding_window": None,
    },
}
IDS = [(7 * position * position + 3) % 300 for position in range(150)]


def plan(start: int, end: int, blocks: list[int]) -> StepPlan:
    offset = -(-start // BLOCK_SIZE)
    new = blocks[offset : -(-end // BLOCK_SIZE)]
    starts = [RowStart(key(1), 0, IDS, GREEDY)] if start == 0 else []
    return StepPlan([PlanRow(key(1), 0, start, IDS[start:end], offset, new, True)], starts)


def reference_model(settings: dict[str, Any]) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))  # type: ignore[no-untyped-call]
    model.train(False)
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_the_reference(name: str, tmp_path: Path) -> None:
    # Given a random model, saved by transformers in shards
    torch.manual_seed(0)
    model = reference_model(COMMON | CONFIGS[name])
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.15)
    model.save_pretrained(tmp_path, max_shard_size="300KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    with torch.inference_mode():
        expected = model(torch.tensor([IDS])).logits[0]
    # When ours computes the same ids in chunks and single tokens, on blocks out of order
    runner = ModelRunner.load(tmp_path, blocks=16, max_rows=2, max_context_tokens=256, dtype="float32")
    blocks = [3, 9, 1, 15, 0, 7, 12, 2, 11, 5]
    edges = [0, 1, 30, 31, 32, 96, 97, 129, 149, 150]
    for start, end in pairwise(edges):
        _, logits = runner.compute_logits(plan(start, end, blocks))
        # Then the logits after each piece are the reference's
        torch.testing.assert_close(logits[0], expected[end - 1], atol=1e-4, rtol=1e-4)
    assert expected.std() > 0.5, "the model says nothing, the comparison would pass by accident"
