"""What a prefix key finds, what is evicted for whom, and what the router hears of it."""

import logging
from collections.abc import Sequence

import pytest

from gpuworker.engine.block_pool import BLOCK_SIZE, BlockPool, PoolCorrupt, PoolExhausted
from policy.prefix import prefix_next, prefix_root


def ids_of(blocks: int, first: int = 0) -> list[int]:
    return list(range(first, first + blocks * BLOCK_SIZE))


def chain(ids: Sequence[int], tenant: str = "tenant") -> list[bytes]:
    keys = [prefix_root(b"secret", tenant, "digest", "", "float32")]
    for at in range(0, len(ids) - BLOCK_SIZE + 1, BLOCK_SIZE):
        keys.append(prefix_next(keys[-1], ids[at : at + BLOCK_SIZE]))
    return keys[1:]


def compute(pool: BlockPool, ids: Sequence[int], tenant: str = "tenant") -> list[int]:
    """Blocks of a row that was computed and published; the caller releases them."""
    table = pool.allocate(len(ids) // BLOCK_SIZE)
    for at, (block, key) in enumerate(zip(table, chain(ids, tenant), strict=True)):
        pool.publish(block, key, ids[at * BLOCK_SIZE : (at + 1) * BLOCK_SIZE], tenant, at)
    return table


def leave(pool: BlockPool, ids: Sequence[int], tenant: str = "tenant") -> list[int]:
    table = compute(pool, ids, tenant)
    pool.release(table)
    return table


def found(pool: BlockPool, ids: Sequence[int], tenant: str = "tenant") -> list[int]:
    return pool.match(chain(ids, tenant), ids)


# -- hits -------------------------------------------------------------------------------------------------


def test_the_longest_common_beginning_is_found_while_held_and_after() -> None:
    pool = BlockPool(10)
    table = compute(pool, ids_of(3))
    longer = [*ids_of(2), *ids_of(3, first=900)]
    assert found(pool, longer) == table[:2]
    pool.release(table)
    assert found(pool, longer) == table[:2]
    assert (pool.free_blocks, pool.cached_blocks) == (10, 3)
    assert found(pool, ids_of(3, first=16)) == [], "the same ids elsewhere in a sequence are another prefix"


def test_what_was_not_published_is_not_found() -> None:
    pool = BlockPool(4)
    pool.allocate(2)
    assert found(pool, ids_of(2)) == []


def test_other_tenants_find_nothing() -> None:
    pool = BlockPool(4)
    compute(pool, ids_of(2), "one")
    assert found(pool, ids_of(2), "other") == []


def test_a_run_ends_at_the_first_gap() -> None:
    pool = BlockPool(4)
    table = compute(pool, ids_of(3))
    keys = chain(ids_of(3))
    assert pool.match([keys[0], b"?" * 16, keys[2]], ids_of(3)) == table[:1]
    assert pool.match([], []) == []


def test_a_hit_takes_the_block_out_of_the_order_of_eviction() -> None:
    pool = BlockPool(3)
    table = leave(pool, ids_of(3))
    pool.share(found(pool, ids_of(2)))
    assert pool.free_blocks == 1
    assert pool.allocate(1) == table[2:]
    pool.check_integrity([table[:2], table[2:]])


def test_two_rows_that_computed_the_same_keep_their_own_blocks() -> None:
    pool = BlockPool(4)
    first, second = compute(pool, ids_of(2)), compute(pool, ids_of(2))
    assert found(pool, ids_of(2)) == first
    assert [pool.is_writable(block) for block in second] == [True, True]
    pool.release(first)
    pool.release(second)
    assert found(pool, ids_of(2)) == first
    assert pool.cached_blocks == 2
    pool.check_integrity([])


def test_publishing_again_changes_nothing() -> None:
    pool = BlockPool(2)
    table = compute(pool, ids_of(1))
    pool.publish(table[0], chain(ids_of(1))[0], ids_of(1), "tenant", 0)
    assert pool.cached_blocks == 1
    pool.check_integrity([table])


def test_a_lying_key_is_no_hit_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    pool = BlockPool(4)
    table = compute(pool, ids_of(2))
    keys = chain(ids_of(2))
    with caplog.at_level(logging.WARNING):
        assert pool.match(keys, [*ids_of(1), *ids_of(1, first=500)]) == table[:1]
    assert pool.collisions == 1
    assert keys[1].hex() in caplog.text
    # And a row that publishes other ids under a key that is held stays private
    other = pool.allocate(1)
    pool.publish(other[0], keys[0], ids_of(1, first=700), "tenant", 0)
    assert pool.collisions == 2
    assert pool.match(keys, ids_of(2)) == table
    pool.check_integrity([table, other])


@pytest.mark.parametrize(
    ("block", "key", "count", "complaint"),
    [(0, b"new", 16, "two keys"), (1, b"new", 15, "15 tokens"), (2, b"new", 16, "by nobody")],
)
def test_a_wrong_publication_is_a_defect(block: int, key: bytes, count: int, complaint: str) -> None:
    pool = BlockPool(3)
    compute(pool, ids_of(1))
    pool.allocate(1)
    with pytest.raises(PoolCorrupt, match=complaint):
        pool.publish(block, key, [1] * count, "tenant", 0)


def test_ids_that_do_not_fill_the_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fill"):
        BlockPool(2).match([b"key"], [1] * 15)


# -- eviction ---------------------------------------------------------------------------------------------


def test_blank_blocks_go_before_cached_ones_and_tails_before_heads() -> None:
    pool = BlockPool(5)
    old = leave(pool, ids_of(2))
    new = leave(pool, ids_of(2, first=100))
    blank = pool.allocate(1)
    pool.release(blank)
    assert pool.allocate(5) == [*blank, *reversed(old), *reversed(new)]
    assert pool.cached_blocks == 0
    assert found(pool, ids_of(2)) == []


def test_a_hit_makes_a_prefix_young_again() -> None:
    pool = BlockPool(4)
    old, new = leave(pool, ids_of(2)), leave(pool, ids_of(2, first=100))
    pool.share(old)
    pool.release(old)
    assert pool.allocate(2) == [*reversed(new)]
    assert found(pool, ids_of(2)) == old


def test_a_referenced_block_is_never_evicted() -> None:
    pool = BlockPool(4)
    held = compute(pool, ids_of(2))
    leave(pool, ids_of(2, first=100))
    pool.allocate(2)
    assert found(pool, ids_of(2)) == held
    assert pool.free_blocks == 0


def test_a_failed_allocation_evicts_nothing() -> None:
    pool = BlockPool(4)
    held, cached = pool.allocate(1), leave(pool, ids_of(2))
    pool.take_events()
    with pytest.raises(PoolExhausted, match="4 blocks wanted, 3 free"):
        pool.allocate(4)
    assert found(pool, ids_of(2)) == cached
    pool.check_integrity([held])


def test_owners_above_their_share_lose_theirs_first_down_to_the_share() -> None:
    # Given an old prefix of a small tenant and five newer blocks of a large one, whose ceiling is 4 of 8
    pool = BlockPool(8, owner_share=0.5)
    small = leave(pool, ids_of(2), "small")
    large = leave(pool, ids_of(6, first=100), "large")
    # When blocks are needed, the large tenant pays down to its share
    assert pool.allocate(2) == [large[5], large[4]]
    assert found(pool, ids_of(2), "small") == small
    # And from there on the oldest goes
    assert pool.allocate(2) == [*reversed(small)]
    assert pool.allocate(4) == [*reversed(large[:4])]


def test_a_lonely_tenant_may_have_the_whole_pool() -> None:
    pool = BlockPool(8, owner_share=0.25)
    table = leave(pool, ids_of(8))
    assert found(pool, ids_of(8)) == table


def test_blocks_in_use_do_not_count_against_the_share() -> None:
    pool = BlockPool(8, owner_share=0.5)
    leave(pool, ids_of(2), "small")
    held = compute(pool, ids_of(5, first=100), "large")
    free = [pool.allocate(1)[0]]
    pool.allocate(2)
    assert found(pool, ids_of(2), "small") == [], "nobody was above the share: the oldest went"
    assert found(pool, ids_of(5, first=100), "large") == held
    assert free == [7]


def test_several_owners_above_their_share_pay_in_turn() -> None:
    pool = BlockPool(8, owner_share=0.25)
    first = leave(pool, ids_of(3), "first")
    leave(pool, ids_of(2, first=200), "modest")
    second = leave(pool, ids_of(3, first=100), "second")
    assert pool.allocate(2) == [first[2], second[2]]


def test_forgetting_everything_leaves_rows_alone() -> None:
    pool = BlockPool(6)
    held, _ = compute(pool, ids_of(2)), leave(pool, ids_of(2, first=100))
    pool.clear_cache()
    assert (pool.cached_blocks, pool.free_blocks) == (0, 4)
    assert found(pool, ids_of(2)) == []
    pool.check_integrity([held])
    pool.release(held)
    pool.check_integrity([])


# -- what the router hears --------------------------------------------------------------------------------


def test_the_router_hears_of_every_fourth_link() -> None:
    pool = BlockPool(9)
    keys = chain(ids_of(9))
    leave(pool, ids_of(9))
    assert pool.take_events() == ([keys[3], keys[7]], [])
    assert pool.take_events() == ([], [])
    pool.allocate(3)
    assert pool.take_events() == ([], [keys[7]])
    assert pool.published_keys() == [keys[3]]


def test_what_came_and_went_between_two_reports_is_no_news() -> None:
    pool = BlockPool(4)
    leave(pool, ids_of(4))
    pool.release(pool.allocate(4))
    assert pool.take_events() == ([], [])


def test_what_went_and_came_back_is_no_news() -> None:
    pool = BlockPool(4)
    leave(pool, ids_of(4))
    pool.take_events()
    pool.release(pool.allocate(4))
    leave(pool, ids_of(4))
    assert pool.take_events() == ([], [])
    assert pool.published_keys() == [chain(ids_of(4))[3]]


def test_after_a_full_list_events_are_relative_to_it() -> None:
    # Given a key that the router knew and that was evicted before a new router got the full list
    pool = BlockPool(4)
    leave(pool, ids_of(4))
    pool.take_events()
    pool.release(pool.allocate(4))
    assert pool.published_keys() == []
    # When it comes back, the new router is told
    leave(pool, ids_of(4))
    assert pool.take_events() == ([chain(ids_of(4))[3]], [])


def test_forgetting_everything_is_told() -> None:
    pool = BlockPool(4)
    leave(pool, ids_of(4))
    pool.take_events()
    pool.clear_cache()
    assert pool.take_events() == ([], [chain(ids_of(4))[3]])
