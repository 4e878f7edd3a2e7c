"""Blocks that move (to the host, back, aside, to another runner) carry a row's KV whole."""

import random
from collections.abc import Sequence
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from gpuworker.engine import kv_cache
from gpuworker.engine.block_pool import BLOCK_SIZE
from gpuworker.engine.kv_cache import KVCache
from gpuworker.engine.model_runner import ModelRunner
from gpuworker.engine.plan import Moves
from gpuworker.wire.messages import Sampling
from tests.engine.reference import reference_make
from tests.engine.runner_rows import RunnerRow, ids_make

PROMPT = ids_make(70)
BLOCKS = [3, 9, 1, 14, 0, 7, 12]
SEEDED = Sampling(seed=42, frequency_penalty=0.5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    reference_make({}, folder)
    return folder


def runner_load(folder: Path, dtype: str = "float32") -> ModelRunner:
    return ModelRunner.load(
        folder, blocks=24, max_rows=4, max_context_tokens=256, host_blocks=12, dtype=dtype
    )


@pytest.fixture(scope="module")
def runner(folder: Path) -> ModelRunner:
    return runner_load(folder)


@pytest.fixture(scope="module")
def expected(runner: ModelRunner) -> list[int]:
    row = RunnerRow(PROMPT, BLOCKS, sampling=SEEDED)
    row.run(runner, 20)
    return row.output


def destroy(runner: ModelRunner, blocks: Sequence[int]) -> None:
    """Other rows write all over them."""
    stranger = RunnerRow(ids_make(len(blocks) * BLOCK_SIZE, 11), blocks, slot=3)
    stranger.run(runner, 1)


def test_a_row_swapped_out_and_into_other_blocks_goes_on_as_if_nothing_was(
    runner: ModelRunner, expected: list[int]
) -> None:
    # Given a row in the middle of its output
    row = RunnerRow(PROMPT, BLOCKS, sampling=SEEDED)
    row.run(runner, 9)
    used = row.blocks[:5]
    # When its blocks go to the host, are destroyed on the device, and come back elsewhere
    runner.move(Moves(to_host=list(zip(used, [4, 11, 0, 2, 7], strict=True))))
    destroy(runner, BLOCKS)
    row.blocks = [20, 2, 22, 5, 18, 19]
    runner.move(Moves(to_device=list(zip([4, 11, 0, 2, 7], row.blocks[:5], strict=True))))
    destroy(runner, used)
    # Then the rest of its output is the same
    row.run(runner, 11)
    assert row.output == expected


def test_a_swap_that_restores_a_wrong_block_shows(runner: ModelRunner, expected: list[int]) -> None:
    """That the test above can fail. Two whole blocks of the row itself may change places unseen: attention
    does not depend on the order of keys, whose positions are in them."""
    row = RunnerRow(PROMPT, BLOCKS, sampling=SEEDED)
    row.run(runner, 9)
    runner.move(Moves(to_host=list(zip(row.blocks[:5], range(5), strict=True))))
    row.blocks = [20, 2, 22, 5, 18, 19]
    runner.move(Moves(to_device=list(zip([0, 1, 2, 2, 4], row.blocks[:5], strict=True))))
    row.run(runner, 11)
    assert row.output != expected


def test_a_copied_block_lets_two_rows_go_on_from_one_prompt(runner: ModelRunner, expected: list[int]) -> None:
    # Given a prompt that one row computed, and another that shares its blocks but the last, unfinished one
    row = RunnerRow(PROMPT, BLOCKS, sampling=SEEDED)
    row.run(runner, 1)
    other = RunnerRow(
        PROMPT,
        [*BLOCKS[:4], 17, 18, 19],
        slot=1,
        sampling=Sampling(seed=7),
        computed=len(PROMPT) - 1,
    )
    # When that block is copied, and both go on
    runner.move(Moves(copies=[(BLOCKS[4], 17)]))
    other.run(runner, 20)
    row.run(runner, 19)
    # Then each has what it has alone
    assert row.output == expected
    alone = RunnerRow(PROMPT, BLOCKS, sampling=Sampling(seed=7))
    alone.run(runner, 20)
    assert other.output == alone.output != expected


def test_moves_are_made_kind_after_kind(runner: ModelRunner) -> None:
    # Given device blocks and a host block with contents of their own
    RunnerRow(ids_make(64), [1, 2, 3, 4]).run(runner, 1)
    one, two, three, four = runner.read_blocks([1, 2, 3, 4])
    assert len({one, two, three, four}) == 4
    runner.move(Moves(to_host=[(4, 0)]))
    # When block 1 leaves, host block 0 takes its place, and a copy of that goes to block 2
    runner.move(Moves(to_host=[(1, 5)], to_device=[(0, 1)], copies=[(1, 2)]))
    runner.move(Moves(to_device=[(5, 4)]))
    # Then
    assert runner.read_blocks([1, 2, 3, 4]) == [four, four, three, one]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_blocks_go_to_another_runner(folder: Path, dtype: str) -> None:
    # Given a prompt computed on one runner
    first, second = runner_load(folder, dtype), runner_load(folder, dtype)
    row = RunnerRow(PROMPT, BLOCKS, sampling=SEEDED)
    row.run(first, 1)
    # When its full blocks are handed to a second
    contents = first.read_blocks(BLOCKS[:4])
    second.write_blocks([8, 2, 21, 5], contents)
    assert second.read_blocks([8, 2, 21, 5]) == contents
    # Then the row goes on there with what follows them
    moved = RunnerRow(PROMPT, [8, 2, 21, 5, 6, 7], slot=2, sampling=SEEDED, computed=64)
    moved.run(second, 1)
    row.run(first, 15)
    moved.run(second, 15)
    assert moved.output == row.output


def test_contents_that_are_no_block_are_refused_and_nothing_is_written(runner: ModelRunner) -> None:
    before = runner.read_blocks([1, 2])
    good = bytes(len(before[0]))
    nan = good[:-4] + torch.tensor(torch.nan).numpy().tobytes()
    for blocks, contents, said in (
        ([1], [good[:-1]], "bytes"),
        ([1, 2], [good, good + good], "bytes"),
        ([1, 2], [good], "1 contents for 2 blocks"),
        ([1, 24], [good, good], "there are 24"),
        ([-1], [good], "there are 24"),
        ([1, 2], [good, nan], "not finite"),
    ):
        with pytest.raises(ValueError, match=said):
            runner.write_blocks(blocks, contents)
    assert runner.read_blocks([1, 2]) == before
    assert runner.read_blocks([]) == []
    runner.write_blocks([], [])


@pytest.mark.parametrize(
    "moves",
    [Moves(to_host=[(0, 12)]), Moves(to_device=[(-1, 0)]), Moves(copies=[(0, 24)])],
)
def test_a_move_to_or_from_a_block_that_is_not_there_raises(runner: ModelRunner, moves: Moves) -> None:
    with pytest.raises(ValueError, match="there are"):
        runner.move(moves)


BLOCK = st.integers(0, 5)
PAIRS = st.lists(st.tuples(BLOCK, BLOCK), max_size=8)


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(st.tuples(PAIRS, PAIRS, PAIRS), max_size=4), seed=st.integers(0, 2**32))
def test_moves_have_the_effect_of_one_after_the_other(
    steps: list[tuple[list[tuple[int, int]], ...]], seed: int
) -> None:
    # Given device and host blocks with contents of their own, and a model of them
    cache = KVCache(2, 6, 1, 4, torch.float32, host_blocks=6)
    values = 2 * 2 * BLOCK_SIZE * 4
    device = [torch.full((values,), float(block)).numpy().tobytes() for block in range(6)]
    cache.write(list(range(6)), device)
    host = [bytes(cache.block_bytes)] * 6
    # When blocks are moved
    for out, back, copies in steps:
        cache.to_host(out)
        cache.to_device(back)
        cache.copy(copies)
        for source, target in out:
            host[target] = device[source]
        for source, target in back:
            device[target] = host[source]
        for source, target in copies:
            device[target] = device[source]
    # Then all are where the model says
    assert cache.read(list(range(6))) == device


def test_more_blocks_than_are_moved_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "SWAP_SLICE_BLOCKS", 3)
    cache = KVCache(2, 20, 1, 4, torch.float32, host_blocks=20)
    contents = [torch.rand(cache.block_bytes // 4).numpy().tobytes() for _ in range(20)]
    cache.write(list(range(20)), contents)
    order = random.Random(1).sample(range(20), 20)
    cache.to_host(enumerate(order))
    cache.to_device((order[block], 19 - block) for block in range(20))
    assert cache.read(list(range(20))) == contents[::-1]
