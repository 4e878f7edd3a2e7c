"""Two prefixes have the same name only when everything that decides their KV is the same."""

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from policy.prefix import BLOCK_TOKENS, KEY_BYTES, ROUTER_STRIDE, prefix_next, prefix_root, router_keeps

SECRET = b"a cluster's secret"
ROOT = ("tenant", "digest", "adapter", "float32", "salt")
parts = st.tuples(*[st.text(max_size=4)] * 5)
blocks = st.lists(st.integers(0, 2**32 - 1), min_size=BLOCK_TOKENS, max_size=BLOCK_TOKENS)


@pytest.mark.parametrize("changed", range(5), ids=["tenant", "digest", "adapter", "dtype", "salt"])
def test_everything_in_the_root_changes_the_whole_chain(changed: int) -> None:
    other = [part + "x" * (index == changed) for index, part in enumerate(ROOT)]
    ids = list(range(BLOCK_TOKENS))
    assert prefix_root(SECRET, *ROOT) != prefix_root(SECRET, *other)
    assert prefix_next(prefix_root(SECRET, *ROOT), ids) != prefix_next(prefix_root(SECRET, *other), ids)


def test_nobody_without_the_secret_can_compute_a_name() -> None:
    assert prefix_root(SECRET, *ROOT) != prefix_root(SECRET + b"x", *ROOT)
    with pytest.raises(ValueError, match="secret"):
        prefix_root(b"", *ROOT)


@given(one=parts, other=parts)
@example(one=("a", "b", "", "", ""), other=("ab", "", "", "", ""))
@example(one=("a", "", "", "", "b"), other=("ab", "", "", "", ""))
@example(one=("t", "a", "b", "", ""), other=("t", "ab", "", "", ""))
@example(one=("t", "a", "", "b", ""), other=("t", "a", "b", "", ""))
@example(one=("t", "a\0", "b", "", ""), other=("t", "a", "\0b", "", ""))
def test_no_two_roots_collide(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert (prefix_root(SECRET, *one) == prefix_root(SECRET, *other)) == (one == other)


@given(one=blocks, other=blocks, parent=st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES))
def test_a_link_names_its_ids_and_all_before_them(one: list[int], other: list[int], parent: bytes) -> None:
    link = prefix_next(parent, one)
    assert len(link) == KEY_BYTES
    assert (link == prefix_next(parent, other)) == (one == other)
    assert link != prefix_next(bytes(KEY_BYTES - 1) + b"x", one)
    assert prefix_next(link, other) != prefix_next(parent, other)


@pytest.mark.parametrize("count", [0, BLOCK_TOKENS - 1, BLOCK_TOKENS + 1])
def test_only_full_blocks_have_names(count: int) -> None:
    with pytest.raises(ValueError, match="block"):
        prefix_next(prefix_root(SECRET, *ROOT), [1] * count)


def test_names_are_the_same_in_every_process_and_release() -> None:
    """Router and workers may run different builds: a change of these needs a new domain in the hash."""
    root = prefix_root(SECRET, *ROOT)
    assert root.hex() == "5fcddc832d0d046764adddbae0ee24f1"
    assert prefix_next(root, list(range(BLOCK_TOKENS))).hex() == "3eb39df76b162213494ffaa67cc9a4e7"


def test_the_router_keeps_the_last_block_of_every_stride() -> None:
    assert [depth for depth in range(3 * ROUTER_STRIDE) if router_keeps(depth)] == [3, 7, 11]
