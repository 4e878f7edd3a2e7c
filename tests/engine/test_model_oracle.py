"""Token for token what Hugging Face transformers computes from the same weights (float32, greedy)."""

import dataclasses
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel

from gpuworker.engine.engine import Engine
from gpuworker.engine.model_runner import ModelRunner
from gpuworker.engine.preemption import RecoveryMode
from gpuworker.wire.messages import Sampling
from policy.pacing import StepCost, StepPacer
from tests.engine.prompts import prompt_texts
from tests.engine.support import CACHE, ManualClock, RecordingRunner, key, submit_make

pytestmark = pytest.mark.model

TOKENS, MAX_ROWS, CONTEXT = 64, 24, 2048


class RandomBudgets(StepPacer):
    """Chunks of any size, as a pacer under changing load would give."""

    def __init__(self, seed: int) -> None:
        super().__init__(100)
        self._random = random.Random(seed)

    @property
    def cost(self) -> StepCost:
        return StepCost(base_ms=0, row_ms=0, token_ms=1, context_ms=0)

    def allowed_ms(self) -> float:
        return self._random.choice([16, 17, 48, 100, 255, 512])

    def idle_ms(self) -> float:
        return self.allowed_ms()

    def row_limit(self, mean_context_tokens: float) -> int:
        return MAX_ROWS


@dataclass(frozen=True)
class Case:
    folder: Path
    runner: ModelRunner
    prompts: list[list[int]]
    alone: list[list[int]]  # what our engine says, one prompt at a time

    def engine(
        self,
        runner: RecordingRunner,
        *,
        blocks: int,
        pacer: StepPacer | None = None,
        recovery: RecoveryMode = "auto",
        is_shared: bool = False,
        max_step_tokens: int = 512,
    ) -> Engine:
        return Engine(
            runner,
            self.folder / "tokenizer.json",
            blocks=blocks,
            max_rows=MAX_ROWS,
            max_context_tokens=CONTEXT,
            pacer=pacer,
            eos_ids=frozenset({0, 2}),
            cache=dataclasses.replace(CACHE, host_blocks=HOST_BLOCKS, recovery=recovery, is_shared=is_shared),
            max_step_tokens=max_step_tokens,
        )


BLOCKS, HOST_BLOCKS = 320, 100


@pytest.fixture(scope="module")
def case(smollm2: Path) -> Case:
    runner = ModelRunner.load(
        smollm2,
        blocks=BLOCKS,
        max_rows=MAX_ROWS,
        max_context_tokens=CONTEXT,
        host_blocks=HOST_BLOCKS,
        dtype="float32",
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


def sample_42(
    case: Case, prompt: list[int], *, blocks: int = BLOCKS, mates: int = 0, warm: bool = False, **options: Any
) -> tuple[list[int], Engine]:
    """The ids of one request with seed 42, and the engine that made them."""
    recording = RecordingRunner(case.runner)
    engine = case.engine(recording, blocks=blocks, is_shared=warm, **options)
    if warm:  # somebody of the same tenant asked the same before
        engine.submit(key(98), submit_make(98, prompt, max_tokens=1, ignore_eos=True), 0)
        while engine.has_work():
            engine.step(ManualClock())
    for mate in range(mates):
        mate_submit = submit_make(mate, case.prompts[mate + 2], max_tokens=TOKENS, ignore_eos=True)
        engine.submit(key(mate), mate_submit, 0)
    submit = submit_make(99, prompt, max_tokens=TOKENS, sampling=SEED_42, ignore_eos=True)
    engine.submit(key(99), submit, 0)
    while engine.has_work():
        engine.step(ManualClock())
    return recording.ids(key(99)), engine


def test_a_seed_gives_the_same_ids_whatever_happens_around_the_row(case: Case) -> None:
    prompt = case.prompts[19]
    assert len(prompt) > 200
    alone, _ = sample_42(case, prompt)
    assert alone != case.alone[19]
    # With mates, in small and large chunks
    assert sample_42(case, prompt, mates=7)[0] == alone
    for size in (16, 512):
        assert sample_42(case, prompt, max_step_tokens=size)[0] == alone
    # With a prefix that is cached
    ids, engine = sample_42(case, prompt, warm=True)
    assert ids == alone
    assert engine.stats().cached_tokens == (len(prompt) - 1) // 16 * 16


@pytest.mark.parametrize("recovery", ["recompute", "swap"])
def test_a_seed_gives_the_same_ids_after_a_preemption(case: Case, recovery: RecoveryMode) -> None:
    prompt = case.prompts[1]
    alone, _ = sample_42(case, prompt)
    ids, engine = sample_42(case, prompt, blocks=16, mates=3, recovery=recovery)
    assert ids == alone
    stats = engine.stats()
    assert stats.preemptions > 0
    assert stats.swaps == (stats.preemptions if recovery == "swap" else 0)


@pytest.mark.parametrize("cut", [1, 33, TOKENS - 1])
def test_a_seed_goes_on_with_the_same_ids_where_another_engine_was_lost(case: Case, cut: int) -> None:
    prompt = case.prompts[1]
    alone, _ = sample_42(case, prompt)
    # Given what one engine gave before it was lost
    recording = RecordingRunner(case.runner)
    engine = case.engine(recording, blocks=BLOCKS)
    submit = submit_make(1, prompt + alone[:cut], max_tokens=TOKENS, sampling=SEED_42, ignore_eos=True)
    # When another one goes on
    engine.submit(key(1), replace(submit, emitted=cut), 0)
    while engine.has_work():
        engine.step(ManualClock())
    # Then it gives the rest
    assert recording.ids(key(1)) == alone[cut:]


RESTARTED = """
import sys
from pathlib import Path
from gpuworker.engine.model_runner import ModelRunner
from tests.engine import test_model_oracle as oracle
folder = Path(sys.argv[1])
runner = ModelRunner.load(folder, blocks=64, max_rows=2, max_context_tokens=1024, dtype="float32")
case = oracle.Case(folder, runner, [], [])
print(oracle.sample_42(case, [int(token) for token in sys.argv[2].split(",")], blocks=64)[0])
"""


def test_a_seed_gives_the_same_ids_in_another_process(case: Case) -> None:
    prompt = case.prompts[1]
    alone, _ = sample_42(case, prompt)
    command = [sys.executable, "-c", RESTARTED, str(case.folder), ",".join(map(str, prompt))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == str(alone)


def test_a_prefix_is_found_within_a_tenant_and_never_across(case: Case) -> None:
    # Given two tenants with the same prompt of 1,000 tokens
    prompt = (case.prompts[13] * 2)[:1000]
    recording = RecordingRunner(case.runner)
    engine = case.engine(recording, blocks=BLOCKS, is_shared=True)
    cached, blocks = [], []
    for sid, tenant in enumerate(("one", "two", "one")):
        submit = submit_make(sid, prompt, max_tokens=4, tenant=tenant, ignore_eos=True)
        engine.submit(key(sid), submit, 0)
        while engine.has_work():
            for columns in engine.step(ManualClock()).gateways.values():
                cached += [end.cached_tokens for end in columns.ends]
        rows = [row for plan in recording.plans for row in plan.rows if row.key.sid == sid]
        blocks.append([block for row in rows for block in row.new_blocks][: len(prompt) // 16])
    # Then only the second request of the same tenant finds it, and the texts are the same
    assert cached == [0, 0, 992]
    assert not set(blocks[0]) & set(blocks[1])
    assert blocks[2] == blocks[0]
    assert recording.ids(key(0)) == recording.ids(key(1)) == recording.ids(key(2))
