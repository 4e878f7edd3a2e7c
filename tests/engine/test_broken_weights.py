"""A request that meets broken weights fails alone, and leaves nothing behind for those who get its blocks."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from gpuworker.engine.engine import Engine
from gpuworker.engine.loader import Weights
from gpuworker.engine.model import LlamaModel
from gpuworker.engine.model_runner import ModelRunner
from gpuworker.families.config import config_load
from tests.engine.reference import CONTEXT, reference_make
from tests.engine.support import (
    CACHE,
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
    folder = tmp_path_factory.mktemp("broken")
    reference_make({}, folder)
    tokenizer_file(folder)
    return folder


class BrokenWeights:
    """What memory may come to after loading: the embedding of one token is NaN. On disk it is refused."""

    def __init__(self, source: Weights) -> None:
        self._source = source

    def take(self, name: str) -> Tensor:
        tensor = self._source.take(name).clone()
        if name == "model.embed_tokens.weight":
            tensor[BROKEN] = torch.nan
        return tensor


class Bench:
    def __init__(self, folder: Path) -> None:
        config = config_load(folder)
        with torch.inference_mode():
            weights = BrokenWeights(Weights(folder, config, torch.float32))
            model = LlamaModel(config, weights, max_positions=CONTEXT)
            runner = ModelRunner(model, blocks=BLOCKS, max_rows=4, max_context_tokens=CONTEXT)
        self.runner = RecordingRunner(runner)
        self._engine = Engine(
            self.runner,
            folder / "tokenizer.json",
            blocks=BLOCKS,
            max_rows=4,
            max_context_tokens=CONTEXT,
            pacer=None,
            eos_ids=frozenset({EOS}),
            cache=CACHE,
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
