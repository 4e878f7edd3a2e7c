"""Two ranks give the tokens of one, and fail the rows that one of them fails."""

import random
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from gpuworker.engine.block_pool import BLOCK_SIZE
from gpuworker.engine.engine import CacheOptions, Engine
from gpuworker.engine.isolation import run_isolated
from gpuworker.engine.loader import BadWeights
from gpuworker.engine.model_runner import ModelRunner
from gpuworker.engine.plan import PlanRow, RowStart, Runner, Sampled, SequenceKey, StepPlan
from gpuworker.engine.preemption import RecoveryMode
from gpuworker.engine.tensor_parallel.runner import TensorParallelRunner
from gpuworker.families.fields import UnsupportedModel
from gpuworker.wire.messages import Sampling
from tests.engine.processes import address_space_bytes, children
from tests.engine.sharded_models import BAN, BROKEN, LLAMA, MODELS, model_save
from tests.engine.support import EOS, ManualClock, RecordingRunner, key, run_until_idle, submit_make

BLOCKS, HOST_BLOCKS, MAX_ROWS, CONTEXT = 256, 16, 6, 4096
REQUESTS, POOL_BLOCKS = 8, 12  # too few blocks for the requests


@dataclass
class Pair:
    name: str
    folder: Path
    one: ModelRunner
    two: TensorParallelRunner


def split_load(folder: Path, *, ranks: int) -> TensorParallelRunner:
    return TensorParallelRunner.load(
        folder,
        ranks=ranks,
        blocks=BLOCKS,
        host_blocks=HOST_BLOCKS,
        max_rows=MAX_ROWS,
        max_context_tokens=CONTEXT,
        dtype="float32",
        threads=2,
    )


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = model_save(tmp_path_factory.mktemp("model"), MODELS[request.param])
    one = ModelRunner.load(
        folder,
        blocks=BLOCKS,
        host_blocks=HOST_BLOCKS,
        max_rows=MAX_ROWS,
        max_context_tokens=CONTEXT,
        dtype="float32",
        threads=1,
    )
    two = split_load(folder, ranks=2)
    yield Pair(request.param, folder, one, two)
    two.close()


def engine_make(folder: Path, runner: Runner, recovery: RecoveryMode = "recompute") -> Engine:
    return Engine(
        runner,
        folder / "tokenizer.json",
        blocks=POOL_BLOCKS,
        max_rows=MAX_ROWS,
        max_context_tokens=CONTEXT,
        pacer=None,
        eos_ids=frozenset({EOS}),
        cache=CacheOptions(secret=b"test", host_blocks=HOST_BLOCKS, recovery=recovery),
        max_step_tokens=40,
    )


def schedule_run(engine: Engine, seed: int) -> dict[int, str]:
    """Random arrivals, some with a prefix that others had, some with two choices. Reasons by request."""
    chance = random.Random(seed)
    prefixes = [[chance.randrange(BROKEN) for _ in range(20)] for _ in range(2)]
    clock, outputs, sid = ManualClock(), [], 0
    while sid < REQUESTS or engine.has_work():
        if sid < REQUESTS and chance.random() < 0.7:
            tail = [chance.randrange(BROKEN) for _ in range(chance.randint(1, 60 if sid == 1 else 20))]
            submit = submit_make(
                sid,
                chance.choice(prefixes) + tail,
                max_tokens=chance.randint(20, 32),
                sampling=Sampling(temperature=float(sid % 2), seed=sid, logit_bias=BAN),
                n=2 if sid == 4 else 1,
                ignore_eos=True,
            )
            engine.submit(key(sid), submit, clock())
            sid += 1
        outputs.append(engine.step(clock))
        clock.ms += 10
    engine.check_integrity()
    return {
        end.sid: end.reason for output in outputs for part in output.gateways.values() for end in part.ends
    }


def test_two_ranks_give_the_tokens_of_one(pair: Pair) -> None:
    recovery: RecoveryMode = "recompute" if pair.name == "qwen2" else "swap"
    seen = []
    for runner in (pair.one, pair.two):
        recording = RecordingRunner(runner)
        engine = engine_make(pair.folder, recording, recovery)
        reasons = schedule_run(engine, seed=2)
        # Given a schedule with everything in it
        stats = engine.stats()
        assert stats.preemptions
        assert bool(stats.swaps) == (recovery == "swap")
        assert stats.cached_tokens > 0
        assert any(moves.copies for moves in recording.moves)
        assert any(plan.decode_rows and plan.prefill_tokens for plan in recording.plans)
        seen.append((reasons, recording.outputs))
    # Then the ranks agree with the single one
    assert seen[0] == seen[1]
    assert len(seen[0][0]) == REQUESTS


@pytest.mark.parametrize("pair", ["qwen2"], indirect=True)
def test_a_row_that_overflows_on_one_rank_fails_alone(pair: Pair) -> None:
    def run(runner: Runner) -> tuple[dict[int, str], dict[SequenceKey, dict[int, int]]]:
        recording = RecordingRunner(runner)
        engine = engine_make(pair.folder, recording)
        sampling = Sampling(temperature=0.0, logit_bias=BAN)
        for sid in range(5):
            prompt = [10 + sid] * 20 + [BROKEN if sid == 2 else 3] + [9] * 3
            engine.submit(key(sid), submit_make(sid, prompt, sampling=sampling, ignore_eos=True), 0)
        ends = [
            end
            for output in run_until_idle(engine, ManualClock())
            for part in output.gateways.values()
            for end in part.ends
        ]
        return {end.sid: end.reason for end in ends}, recording.outputs

    expected, actual = run(pair.one), run(pair.two)
    assert actual == expected
    assert actual[0] == {0: "length", 1: "length", 2: "error", 3: "length", 4: "length"}


def chunk(slot: int, ids: list[int], blocks: list[int], sampling: Sampling | None = None) -> StepPlan:
    row = SequenceKey("aa", slot)
    start = RowStart(row, slot, ids, len(ids), sampling or Sampling(temperature=0.0), [])
    return StepPlan([PlanRow(row, slot, 0, ids, 0, blocks, True)], [start])


IDS = [7 * position % BROKEN for position in range(BLOCK_SIZE + 5)]


def test_logprobs_of_prompt_and_output_are_those_of_one_rank(pair: Pair) -> None:
    def values(sampled: Sampled) -> list[float]:
        assert sampled.logprobs is not None
        told = [sampled.logprobs, *sampled.prompt]
        return [value for entry in told for value in (entry.logprob, *(top for _, top in entry.top))]

    plan = chunk(0, IDS, [4, 2], Sampling(temperature=0.0, logprobs=3, prompt_logprobs=2, logit_bias=BAN))
    (one,), (two,) = pair.one.run(plan), pair.two.run(plan)
    assert len(two.prompt) == len(IDS) - 1
    assert values(two) == pytest.approx(values(one), abs=1e-4)


def test_blocks_hold_all_heads_and_move_between_one_rank_and_two(pair: Pair) -> None:
    # Given a prompt that one rank computed
    pair.one.run(chunk(0, IDS, [4, 2]))
    blocks = pair.one.read_blocks([4, 2])
    # When two ranks get its blocks
    pair.two.write_blocks([9, 1], blocks)
    assert pair.two.read_blocks([9, 1]) == blocks
    # Then they go on as one does
    row = SequenceKey("aa", 1)
    start = RowStart(row, 1, [*IDS, 3], len(IDS), Sampling(temperature=0.0, logit_bias=BAN), [])
    (expected,) = pair.one.run(StepPlan([PlanRow(row, 1, len(IDS), [3], 0, [4, 2], True)], [start]))
    assert pair.two.run(StepPlan([PlanRow(row, 1, len(IDS), [3], 0, [9, 1], True)], [start])) == [expected]


def test_blocks_of_another_model_are_refused_and_the_ranks_go_on(pair: Pair) -> None:
    (block,) = pair.one.read_blocks([0])
    not_finite = torch.full((len(block) // 4,), torch.nan).numpy().tobytes()
    for content in (block[:-4], block + block, b"", block[: len(block) // 2], not_finite):
        with pytest.raises(ValueError, match=r"."):
            pair.two.write_blocks([3], [content])
    with pytest.raises(ValueError, match=r"."):
        pair.two.read_blocks([1000])
    pair.two.write_blocks([3], [block])
    assert pair.two.read_blocks([3]) == [block]


@pytest.mark.parametrize("pair", ["llama with all biases"], indirect=True)
def test_a_row_that_raises_on_one_rank_only_fails_alone(pair: Pair) -> None:
    """Its attention mask takes more memory than the other process may have."""
    small = [chunk(slot, [10 + slot] * 20, [200 + 2 * slot, 201 + 2 * slot]) for slot in (0, 1, 3)]
    large = chunk(2, [5] * 3000, list(range(188)))
    plans = [*small, large]
    plan = StepPlan([each.rows[0] for each in plans], [each.starts[0] for each in plans])
    for each in small:
        pair.two.run(each)  # what it needs for these, it has
    expected = run_isolated(pair.one, plan)
    pid = pair.two.rank_pids[0]
    soft, hard = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (address_space_bytes(pid) + 2**23, hard))
    try:
        result = run_isolated(pair.two, plan)
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, (soft, hard))
    failed = SequenceKey("aa", 2)
    assert result.failed.keys() == {failed}
    assert result.rows == {row: sampled for row, sampled in expected.rows.items() if row != failed}
    # Then nothing of it is left
    assert run_isolated(pair.two, plan) == expected


# -- what cannot be loaded --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"num_key_value_heads": 2}, "kv_heads 2"), ({"intermediate_size": 66}, "intermediate_size 66")],
)
def test_a_model_that_does_not_divide_is_refused_by_name(
    tmp_path: Path, changed: dict[str, int], named: str
) -> None:
    model_save(tmp_path, LLAMA | changed)
    before = children()
    with pytest.raises(UnsupportedModel, match=f"{named} does not divide over 4"):
        split_load(tmp_path, ranks=4)
    assert children() == before


def test_weights_that_one_rank_cannot_load_leave_no_process(tmp_path: Path) -> None:
    model_save(tmp_path, LLAMA)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    before = children()
    with pytest.raises(BadWeights, match=str(weights)):
        split_load(tmp_path, ranks=2)
    assert children() == before
