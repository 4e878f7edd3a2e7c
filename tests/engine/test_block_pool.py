"""Blocks are neither lost nor given twice."""

import pytest

from gpuworker.engine.block_pool import BlockPool, PoolCorrupt, PoolExhausted


def test_a_failed_allocation_takes_nothing() -> None:
    pool = BlockPool(4)
    pool.allocate(3)
    with pytest.raises(PoolExhausted):
        pool.allocate(2)
    assert pool.free_blocks == 1


def test_freed_blocks_are_reused_oldest_first_and_tails_before_heads() -> None:
    pool = BlockPool(5)
    first, second = pool.allocate(2), pool.allocate(2)
    pool.release(second)
    pool.release(first)
    assert pool.allocate(5) == [4, *reversed(second), *reversed(first)]


def test_a_shared_block_is_free_only_after_its_last_owner() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    pool.share(blocks)
    pool.release(blocks)
    assert (pool.free_blocks, pool.references(blocks[0])) == (1, 1)
    pool.check_integrity([blocks])
    pool.release(blocks)
    assert pool.free_blocks == 3
    pool.check_integrity([])


def test_a_free_block_can_be_taken_back_by_name() -> None:
    pool = BlockPool(3)
    pool.share([1])
    assert pool.allocate(2) == [0, 2]
    pool.check_integrity([[1], [0, 2]])


def test_a_double_release_is_noticed() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(PoolCorrupt):
        pool.release(blocks)


@pytest.mark.parametrize("tables", [[], [[0], [0]], [[0, 1]]], ids=["leak", "alias", "stolen"])
def test_the_integrity_check_sees(tables: list[list[int]]) -> None:
    pool = BlockPool(3)
    pool.allocate(1)
    with pytest.raises(PoolCorrupt):
        pool.check_integrity(tables)
