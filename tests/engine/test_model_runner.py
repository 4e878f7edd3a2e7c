"""The runner on a random tiny model: sampling through plans, logprobs, and rows that fail alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from gpuworker.engine.isolation import run_isolated
from gpuworker.engine.logits_processors import NothingToSample
from gpuworker.engine.model_runner import ModelRunner
from gpuworker.wire.messages import Sampling, TokenLogprobs
from tests.engine.reference import VOCABULARY, reference_logits, reference_make
from tests.engine.runner_rows import RunnerRow, ids_make, plans_join, run_together
from tests.engine.sampling_rows import Row, by_definition

PROMPT = ids_make(150)
BLOCKS = [3, 9, 1, 15, 0, 7, 12, 2, 11, 5, 30, 31]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def reference(folder: Path) -> PreTrainedModel:
    return reference_make({}, folder)


@pytest.fixture(scope="module")
def runner(folder: Path, reference: PreTrainedModel) -> ModelRunner:
    return ModelRunner.load(folder, blocks=48, max_rows=4, max_context_tokens=256, dtype="float32")


def check(told: TokenLogprobs, token: int, logits: torch.Tensor, top: int) -> None:
    raw = torch.log_softmax(logits, -1)
    best = raw.topk(top)
    assert told.token == token
    assert told.logprob == pytest.approx(float(raw[token]), abs=1e-4)
    assert [value for _, value in told.top] == pytest.approx(best.values.tolist(), abs=1e-4)
    assert [ident for ident, _ in told.top] == best.indices.tolist()


@pytest.mark.parametrize("chunk", [1, 7, 16, 63, 100, 150])
def test_prompt_logprobs_equal_the_reference_whatever_the_chunks(
    runner: ModelRunner, reference: PreTrainedModel, chunk: int
) -> None:
    # Given a row that asks for both kinds, beside one that asks for none
    sampling = Sampling(temperature=0.0, logprobs=2, prompt_logprobs=4)
    row = RunnerRow(PROMPT, BLOCKS, slot=2, sampling=sampling)
    mate = RunnerRow(ids_make(20, 5), [20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 32, 33, 34])
    # When they are computed in chunks, and some tokens of output
    results = []
    while len(row.output) < 3:
        told, other = run_together(runner, [row, mate], chunk)
        assert other.prompt == []
        assert other.logprobs is None
        results.append(told)
    # Then every prompt token but the first has its logprobs once, in order
    logits = reference_logits(reference, row.ids)
    prompt = [entry for sampled in results for entry in sampled.prompt]
    assert len(prompt) == len(PROMPT) - 1
    for position, entry in enumerate(prompt, 1):
        check(entry, PROMPT[position], logits[position - 1], 4)
    # And every output token too
    sampled = [result.logprobs for result in results if result.token >= 0]
    for position, told_of_output in enumerate(sampled, len(PROMPT)):
        assert told_of_output is not None
        check(told_of_output, row.ids[position], logits[position - 1], 2)


def test_prompt_logprobs_of_0_are_the_tokens_own_and_a_prompt_of_one_token_has_none(
    runner: ModelRunner,
) -> None:
    sampling = Sampling(temperature=0.0, prompt_logprobs=0)
    [result] = RunnerRow([5, 6, 7], BLOCKS, sampling=sampling).run(runner, 1)
    assert [(entry.token, entry.top) for entry in result.prompt] == [(6, []), (7, [])]
    [result] = RunnerRow([5], BLOCKS, sampling=sampling).run(runner, 1)
    assert result.prompt == []


def test_logprobs_5_with_top_k_1_and_temperature_2_are_of_raw_logits(
    runner: ModelRunner, reference: PreTrainedModel
) -> None:
    sampling = Sampling(temperature=2.0, top_k=1, logprobs=5, seed=9)
    row = RunnerRow(PROMPT[:40], BLOCKS, sampling=sampling)
    results = row.run(runner, 8)
    logits = reference_logits(reference, row.ids)
    for position, result in enumerate(results, 40):
        assert result.logprobs is not None
        check(result.logprobs, row.ids[position], logits[position - 1], 5)


PARAMETERS: list[dict[str, Any]] = [
    {"temperature": 0.0, "repetition_penalty": 1.5},
    {"temperature": 1.0, "presence_penalty": 1.5, "frequency_penalty": 0.7},
    {"temperature": 1.3, "logit_bias": [(7, 8.0), (9, -100.0)], "min_tokens": 4, "top_p": 0.9},
    {"temperature": 1.0, "repetition_penalty": 0.7, "min_p": 0.01, "top_k": 40},
]


@pytest.mark.parametrize("options", PARAMETERS)
def test_greedy_rows_are_those_of_the_reference_by_the_definitions(
    runner: ModelRunner, reference: PreTrainedModel, options: dict[str, Any]
) -> None:
    sampling = Sampling(**{**options, "temperature": 0.0})
    row = RunnerRow(PROMPT[:30], BLOCKS, sampling=sampling, stop_ids=[4])
    row.run(runner, 12, chunk=7)
    for at, token in enumerate(row.output):
        output = row.output[:at]
        logits = reference_logits(reference, [*PROMPT[:30], *output])[-1]
        changed = by_definition(Row(logits, sampling, PROMPT[:30], output, stop_ids=[4]))
        assert token == int(changed.argmax())


@pytest.mark.parametrize("options", PARAMETERS)
def test_penalties_need_no_more_than_the_plans(runner: ModelRunner, options: dict[str, Any]) -> None:
    """A row gives the same ids alone in one chunk, in small chunks with mates, and begun anew half way."""
    sampling = Sampling(seed=42, **options)
    prompt = PROMPT[:30]
    alone = RunnerRow(prompt, BLOCKS, sampling=sampling, stop_ids=[4])
    alone.run(runner, 12)
    assert alone.output != plain_output(runner, prompt)

    chunked = RunnerRow(prompt, BLOCKS, slot=1, sampling=sampling, stop_ids=[4])
    mates = [
        RunnerRow(ids_make(9, slot), [16 + slot * 8 + i for i in range(8)], slot=slot) for slot in (2, 3)
    ]
    while len(chunked.output) < 12:
        run_together(runner, [mates[0], chunked, mates[1]], 7)
    assert chunked.output == alone.output

    resumed = RunnerRow(prompt, BLOCKS, slot=1, sampling=sampling, stop_ids=[4])
    resumed.run(runner, 5)
    again = RunnerRow(prompt, BLOCKS[4:], slot=3, sampling=sampling, stop_ids=[4])
    again.ids = list(resumed.ids)
    again.run(runner, 7, chunk=16)
    assert again.output == alone.output


def plain_output(runner: ModelRunner, prompt: list[int]) -> list[int]:
    row = RunnerRow(prompt, BLOCKS)
    row.run(runner, 12)
    return row.output


def test_a_plan_run_twice_gives_the_same_twice(runner: ModelRunner) -> None:
    sampling = Sampling(seed=1, frequency_penalty=1.0, logprobs=2, prompt_logprobs=1)
    row = RunnerRow(PROMPT[:20], BLOCKS, sampling=sampling)
    for _ in range(4):
        plan = row.plan()
        first, second = runner.run(plan), runner.run(plan)
        assert first == second
        row.apply(plan.rows[0], first[0])


def test_a_row_without_any_token_left_fails_alone(runner: ModelRunner) -> None:
    # Given three rows, one with a grammar that allows nothing
    rows = [RunnerRow(ids_make(9, slot), [slot], slot=slot) for slot in range(3)]
    nothing = bytes(VOCABULARY // 8)
    plan = plans_join([rows[0].plan(), rows[1].plan(mask=nothing), rows[2].plan(mask=b"\xff" * 38)])
    with pytest.raises(NothingToSample):
        runner.run(plan)
    # When the step is tried in parts
    result = run_isolated(runner, plan)
    # Then it alone fails, the others have the tokens they have alone
    assert result.failed.keys() == {rows[1].key}
    for row in (rows[0], rows[2]):
        [alone] = runner.run(row.plan())
        assert result.rows[row.key] == alone


def test_a_mask_holds_for_its_step_only(runner: ModelRunner) -> None:
    row = RunnerRow(PROMPT[:20], BLOCKS)
    [free] = runner.run(row.plan())
    only = bytearray(38)
    only[17] = 1 << 5
    [bound] = runner.run(row.plan(mask=bytes(only)))
    assert bound.token == 17 * 8 + 5 != free.token
    assert runner.run(row.plan()) == [free]
