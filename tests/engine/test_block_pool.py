"""Blocks are neither lost nor given twice."""

import pytest

from gpuworker.engine.block_pool import BLOCK_SIZE, BlockPool, PoolCorrupt, PoolExhausted, blocks_for


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (40, 3)])
def test_a_begun_block_is_a_block(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens) == blocks


def test_a_failed_allocation_takes_nothing() -> None:
    pool = BlockPool(4)
    held = pool.allocate(3)
    with pytest.raises(PoolExhausted, match="2 blocks wanted, 1 free"):
        pool.allocate(2)
    assert pool.free_blocks == 1
    pool.check_integrity([held])


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


def test_a_blank_block_cannot_be_shared_and_nothing_is_taken() -> None:
    pool = BlockPool(3)
    held = pool.allocate(1)
    with pytest.raises(PoolCorrupt, match="nothing to share"):
        pool.share([*held, 2])
    pool.check_integrity([held])


def test_a_double_release_is_noticed() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(PoolCorrupt, match="more often"):
        pool.release(blocks)


def test_only_a_block_of_one_owner_that_nobody_can_find_is_writable() -> None:
    pool = BlockPool(3)
    private, shared, published = pool.allocate(3)
    pool.share([shared])
    pool.publish(published, b"key", [7] * BLOCK_SIZE, "tenant", 0)
    assert [pool.is_writable(block) for block in (private, shared, published)] == [True, False, False]
    pool.release([private])
    assert not pool.is_writable(private)


@pytest.mark.parametrize("tables", [[], [[0], [0]], [[0, 1]]], ids=["leak", "alias", "stolen"])
def test_the_integrity_check_sees(tables: list[list[int]]) -> None:
    pool = BlockPool(3)
    pool.allocate(1)
    with pytest.raises(PoolCorrupt):
        pool.check_integrity(tables)


def test_an_empty_pool_and_an_impossible_share_are_refused() -> None:
    with pytest.raises(ValueError, match="holds nothing"):
        BlockPool(0)
    with pytest.raises(ValueError, match="owner_share"):
        BlockPool(1, owner_share=1.5)
