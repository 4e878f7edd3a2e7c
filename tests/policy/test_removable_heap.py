"""A heap gives its items by rank, removes any of them at once, and keeps nothing of what was removed."""

from hypothesis import given
from hypothesis import strategies as st

from policy.removable_heap import SWEEP_SLACK, RemovableHeap

commands = st.lists(
    st.tuples(st.sampled_from(["push", "remove", "head", "until"]), st.integers(0, 20), st.integers(0, 50))
)


@given(commands)
def test_it_behaves_like_a_sorted_dictionary(actions: list[tuple[str, int, int]]) -> None:
    heap: RemovableHeap[str] = RemovableHeap()
    known: dict[int, tuple[int, int]] = {}
    for number, (action, key, rank) in enumerate(actions):
        if action == "push":
            heap.push((rank, number), key, f"item {key}")
            known[key] = (rank, number)
        elif action == "remove":
            assert heap.remove(key) == (f"item {key}" if known.pop(key, None) else None)
        elif action == "until":
            late = sorted((at, key) for key, at in known.items() if at < (rank,))
            assert heap.pop_until((rank,)) == [f"item {key}" for _, key in late]
            known = {key: at for key, at in known.items() if at >= (rank,)}
        least = min(known, key=known.__getitem__, default=None)
        assert heap.head() == (None if least is None else f"item {least}")
        assert len(heap) == len(known)
        assert all((key in heap) == (key in known) for key in range(21))
        assert sorted(heap) == sorted(f"item {key}" for key in known)
        assert heap.entries <= 2 * len(known) + SWEEP_SLACK


def test_a_thousand_removed_items_leave_nothing_behind() -> None:
    heap: RemovableHeap[int] = RemovableHeap()
    for number in range(1000):
        heap.push((number,), number, number)
    for number in range(1000):
        assert heap.remove(number) == number
    assert len(heap) == 0
    assert heap.entries <= SWEEP_SLACK
    assert heap.head() is None
    assert heap.entries == 0


def test_a_key_that_comes_again_has_one_rank() -> None:
    heap: RemovableHeap[str] = RemovableHeap()
    heap.push((1,), "a", "early")
    heap.push((2,), "b", "middle")
    heap.push((3,), "a", "late")
    assert heap.pop_until((9,)) == ["middle", "late"]
