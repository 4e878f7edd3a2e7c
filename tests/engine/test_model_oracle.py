"""Token for token what Hugging Face transformers computes from the same weights (float32, greedy)."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from gpuworker.engine.engine import Engine
from gpuworker.engine.model_runner import ModelRunner
from gpuworker.wire.messages import Sampling
from policy.pacing import StepPacer
from tests.engine.prompts import prompt_texts
from tests.engine.support import GREEDY, ManualClock, RecordingRunner, key, submit_make

pytestmark = pytest.mark.model

TOKENS, MAX_ROWS, CONTEXT = 64, 24, 2048


class RandomBudgets(StepPacer):
    """Chunks of any size, as a pacer under changing load would give."""

    def __init__(self, seed: int) -> None:
        super().__init__(100)
        self._random = random.Random(seed)

    def prefill_budget(self, decode_rows: int) -> int:
        return self._random.choice([16, 17, 48, 100, 255, 512])


@dataclass(frozen=True)
class Case:
    folder: Path
    runner: ModelRunner
    prompts: list[list[int]]
    alone: list[list[int]]  # what our engine says, one prompt at a time

    def engine(self, runner: RecordingRunner, *, blocks: int, pacer: StepPacer | None = None) -> Engine:
        return Engine(
            runner,
            self.folder / "tokenizer.json",
            blocks=blocks,
            max_rows=MAX_ROWS,
            max_context_tokens=CONTEXT,
            pacer=pacer,
            eos_ids=frozenset({0, 2}),
        )


BLOCKS = 320


@pytest.fixture(scope="module")
def case(smollm2: Path) -> Case:
    runner = ModelRunner.load(
        smollm2, blocks=BLOCKS, max_rows=MAX_ROWS, max_context_tokens=CONTEXT, dtype="float32"
    )
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    prompts = [tokenizer.encode(text).ids for text in prompt_texts()]
    empty = Case(smollm2, runner, prompts, [])
    alone = []
    for prompt in prompts:
        recording = RecordingRunner(runner)
        engine = empty.engine(recording, blocks=BLOCKS)
        engine.submit(key(0), submit_make(0, prompt, max_tokens=TOKENS, ignore_eos=True), 0)
        while engine.has_work():
            engine.step(ManualClock())
        alone.append(recording.ids(key(0)))
    return Case(smollm2, runner, prompts, alone)


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    model.train(False)
    return model


def test_the_prompts_are_twenty_and_long_ones_are_among_them(case: Case) -> None:
    assert len(case.prompts) == 20
    assert max(map(len, case.prompts)) > 1000
    assert {len(output) for output in case.alone} == {TOKENS}


@pytest.mark.parametrize("index", range(20))
def test_alone_equals_what_the_reference_generates(
    case: Case, reference: PreTrainedModel, index: int
) -> None:
    prompt = torch.tensor([case.prompts[index]])
    with torch.inference_mode():
        generated = reference.generate(  # type: ignore[operator]
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    assert generated[0, prompt.shape[1] :].tolist() == case.alone[index]


def test_together_with_random_arrivals_chunks_and_preemption(case: Case) -> None:
    # Given a pool too small for all of them at once, and arrivals spread over the first steps
    randomness = random.Random(1)
    order = randomness.sample(range(20), 20)
    arrivals = sorted(randomness.randint(0, 30) for _ in order)
    recording = RecordingRunner(case.runner)
    engine = case.engine(recording, blocks=100, pacer=RandomBudgets(1))
    # When they run together
    step = 0
    waiting = list(zip(arrivals, order, strict=True))
    while waiting or engine.has_work():
        while waiting and waiting[0][0] <= step:
            index = waiting.pop(0)[1]
            submit = submit_make(index, case.prompts[index], max_tokens=TOKENS, ignore_eos=True)
            engine.submit(key(index), submit, 0)
        engine.step(ManualClock())
        engine.check_integrity()
        step += 1
    # Then somebody was preempted, batches were mixed, and every text is the one computed alone
    assert engine.stats().preemptions > 0
    assert max(len(plan.rows) for plan in recording.plans) > 8
    for index in range(20):
        assert recording.ids(key(index)) == case.alone[index]


SEED_42 = Sampling(temperature=1.0, top_p=0.95, seed=42)


def test_a_seed_gives_the_same_text_alone_with_mates_and_after_preemption(case: Case) -> None:
    prompt = case.prompts[1]

    def sample(blocks: int, mates: int, check: Callable[[Engine], None] = lambda engine: None) -> list[int]:
        recording = RecordingRunner(case.runner)
        engine = case.engine(recording, blocks=blocks)
        for mate in range(mates):
            mate_submit = submit_make(mate, case.prompts[mate + 2], max_tokens=TOKENS, ignore_eos=True)
            engine.submit(key(mate), mate_submit, 0)
        submit = submit_make(99, prompt, max_tokens=TOKENS, sampling=SEED_42, ignore_eos=True)
        engine.submit(key(99), submit, 0)
        while engine.has_work():
            engine.step(ManualClock())
        check(engine)
        return recording.ids(key(99))

    def preempted(engine: Engine) -> None:
        assert engine.stats().preemptions > 0

    alone = sample(BLOCKS, 0)
    assert alone != sample_greedy(case, prompt)
    assert sample(BLOCKS, 7) == alone
    assert sample(16, 3, preempted) == alone


def sample_greedy(case: Case, prompt: list[int]) -> list[int]:
    assert GREEDY.temperature == 0
    return case.alone[case.prompts.index(prompt)]
