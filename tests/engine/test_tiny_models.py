"""Random tiny models of each family: logits within 1e-4 of transformers, however work is cut into steps."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.engine.reference import VOCABULARY, PagedModel, reference_logits, reference_make

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
MISTRAL = {"model_type": "mistral", "sliding_window": None}
QWEN2 = {"model_type": "qwen2"}
QWEN3 = {"model_type": "qwen3", "head_dim": 32}
SLIDING = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama grouped, tied": {"num_attention_heads": 6, "head_dim": 16, "tie_word_embeddings": True},
    "llama multi-head": {"num_key_value_heads": 4},
    "llama multi-query": {"num_key_value_heads": 1},
    "llama biases": {"attention_bias": True, "mlp_bias": True},
    "llama linear rope": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama llama3 rope": {"rope_theta": 5e5, "rope_scaling": LLAMA3},
    "llama yarn": {"rope_scaling": YARN},
    "mistral": MISTRAL | {"head_dim": 24},
    "mistral sliding": MISTRAL | {"sliding_window": 20},
    "mistral window of a block": MISTRAL | {"sliding_window": 16},
    "mistral window of one": MISTRAL | {"sliding_window": 1},
    "qwen2": QWEN2,
    "qwen2 tied": QWEN2 | {"tie_word_embeddings": True},
    "qwen2 sliding from a layer on": QWEN2 | SLIDING,
    "qwen2 sliding by layer types": QWEN2
    | SLIDING
    | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "qwen2 yarn, not truncated": QWEN2
    | {"rope_scaling": YARN | {"truncate": False, "beta_fast": 16.0, "beta_slow": 2.0}},
    "qwen3": QWEN3,
    "qwen3 biases": QWEN3 | {"attention_bias": True},
    "qwen3 sliding, tied": QWEN3 | SLIDING | {"tie_word_embeddings": True},
    "qwen3 yarn, attention factor": QWEN3 | {"rope_scaling": YARN | {"attention_factor": 1.3}},
    "qwen3 yarn, mscale": QWEN3 | {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}},
}
LENGTHS = (150, 17, 64, 1, 33)


def ids_of(row: int) -> list[int]:
    return [(7 * position * position + 3 + 41 * row) % VOCABULARY for position in range(LENGTHS[row])]


class Case:
    def __init__(self, name: str, folder: Path) -> None:
        self.reference: PreTrainedModel = reference_make(CONFIGS[name], folder)
        self.folder = folder
        self.expected = [reference_logits(self.reference, ids_of(row)) for row in range(len(LENGTHS))]


@pytest.fixture(scope="module", params=CONFIGS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp("tiny"))


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_the_comparison_is_not_empty(case: Case) -> None:
    assert len(list(case.folder.glob("*.safetensors"))) > 1
    assert case.expected[0].std() > 0.5


def test_a_whole_prompt_then_decodes(case: Case) -> None:
    model, ids = PagedModel(case.folder), ids_of(0)
    assert_close(model.step({0: ids[:120]})[0], case.expected[0][:120])
    for position in range(120, 150):
        assert_close(model.step({0: ids[position : position + 1]})[0], case.expected[0][position, None])


def test_chunks_of_any_size(case: Case) -> None:
    model, ids = PagedModel(case.folder), ids_of(0)
    for start, end in pairwise([0, 1, 30, 31, 32, 96, 97, 129, 149, 150]):
        assert_close(model.step({0: ids[start:end]})[0], case.expected[0][start:end])


def test_rows_of_mixed_lengths_in_one_step(case: Case) -> None:
    """Prompts, chunks and decodes of unequal rows side by side."""
    model, done = PagedModel(case.folder, rows=len(LENGTHS)), [0] * len(LENGTHS)
    sizes = [[70, 1, 3, 76], [16, 1], [1] * 10 + [54], [1], [30, 1, 1, 1]]
    while any(sizes):
        work = {row: sizes[row].pop(0) for row in range(len(LENGTHS)) if sizes[row]}
        spans = {row: slice(done[row], done[row] + size) for row, size in work.items()}
        for row, logits in model.step({row: ids_of(row)[span] for row, span in spans.items()}).items():
            assert_close(logits, case.expected[row][spans[row]])
            done[row] = spans[row].stop
    assert done == list(LENGTHS)


@pytest.mark.parametrize("name", ["llama biases", "qwen2 sliding from a layer on", "qwen3 biases"])
def test_in_bfloat16_the_logits_are_nearly_the_same(name: str, tmp_path: Path) -> None:
    expected = reference_logits(reference_make(CONFIGS[name], tmp_path), ids_of(0))
    found = PagedModel(tmp_path, dtype=torch.bfloat16).step({0: ids_of(0)})[0]
    assert (found - expected).abs().mean() < 0.05 * expected.std()
