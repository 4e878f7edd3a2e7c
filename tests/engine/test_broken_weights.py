"""A request that meets broken weights fails alone, and leaves nothing behind for those who get its blocks."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from gpuworker.engine.engine import Engine
from gpuworker.engine.model_runner import ModelRunner
from tests.engine.support import (
    EOS,
    ManualClock,
    RecordingRunner,
    key,
    run_until_idle,
    submit_make,
    tokenizer_file,
)

BROKEN, BLOCKS, OUTPUT = 5, 16, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose embedding of one token is NaN."""
    folder = tmp_path_factory.mktemp("broken")
    config = AutoConfig.for_model(
        model_type="llama",
        vocab_size=300,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        max_position_embeddings=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.model.embed_tokens.weight.data[BROKEN] = torch.nan
    model.save_pretrained(folder)
    tokenizer_file(folder)
    return folder


class Bench:
    def __init__(self, folder: Path) -> None:
        model = ModelRunner.load(folder, blocks=BLOCKS, max_rows=4, max_context_tokens=256, dtype="float32")
        self.runner = RecordingRunner(model)
        self._engine = Engine(
            self.runner,
            folder / "tokenizer.json",
            blocks=BLOCKS,
            max_rows=4,
            max_context_tokens=256,
            pacer=None,
            eos_ids=frozenset({EOS}),
        )

    def run(self, prompts: dict[int, list[int]]) -> dict[int, str]:
        """Reasons by row."""
        for sid, prompt in prompts.items():
            submit = submit_make(sid, prompt, max_tokens=OUTPUT, ignore_eos=True)
            self._engine.submit(key(sid), submit, 0)
        outputs = run_until_idle(self._engine, ManualClock())
        return {
            end.sid: end.reason
            for output in outputs
            for part in output.gateways.values()
            for end in part.ends
        }


def healthy(first: int, count: int) -> dict[int, list[int]]:
    return {sid: [10 + sid] * 20 for sid in range(first, first + count)}


@pytest.mark.parametrize(
    "prompt", [[10] * 200 + [BROKEN] * 20, [BROKEN] + [10] * 200], ids=["at the end", "in the first chunk"]
)
def test_a_row_of_nan_fails_alone_and_later_requests_succeed(folder: Path, prompt: list[int]) -> None:
    expected = Bench(folder)
    expected.run(healthy(0, 15))
    bench = Bench(folder)
    # Given requests that run beside the one that breaks, which takes most of the pool
    reasons = bench.run(healthy(0, 1) | {99: prompt} | healthy(1, 2))
    assert reasons == {0: "length", 1: "length", 2: "length", 99: "error"}
    # When its blocks are given to others
    reasons = bench.run(healthy(3, 12))
    # Then all have what they would have had
    assert reasons == dict.fromkeys(range(3, 15), "length")
    for sid in range(15):
        assert bench.runner.ids(key(sid)) == expected.runner.ids(key(sid))
