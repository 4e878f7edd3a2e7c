"""A replica by what it has pending and free, and who computes a long prompt for it."""

import pytest

from policy.placement import (
    PREFILL_BACKLOG_TOKENS,
    PREFILL_REMOTE_TOKENS,
    PREFILL_WINDOW_TOKENS,
    PrefillReplica,
    has_room,
    is_servable,
    placement_choose,
    prefill_choose,
)
from tests.policy.queue_fleet import replica_make


def test_the_one_with_least_to_compute_before_it_then_the_most_memory() -> None:
    replicas = [
        replica_make(key="busy", rows=1, pending=100, free=900),
        replica_make(key="small", rows=1, pending=0, free=100),
        replica_make(key="large", rows=1, pending=0, free=800),
    ]
    chosen = placement_choose(replicas, 16)
    assert chosen is not None
    assert chosen.key == "large"
    assert placement_choose([], 16) is None


@pytest.mark.parametrize(
    ("fields", "fits"),
    [
        ({"rows": 0, "free": 0}, True),  # idle: it takes whatever it can serve
        ({"rows": 1, "pending": PREFILL_WINDOW_TOKENS}, False),
        ({"rows": 4, "max_rows": 4}, False),
        ({"rows": 1, "free": 1}, False),
        ({"rows": 1, "takes_more": False}, False),
        ({"rows": 1}, True),
    ],
)
def test_room(fields: dict[str, object], fits: bool) -> None:
    assert has_room(replica_make(**fields), 16) is fits  # type: ignore[arg-type]


def test_a_prompt_and_a_token_have_to_fit() -> None:
    replica = replica_make(max_tokens=100)
    assert is_servable(replica, 99)
    assert not is_servable(replica, 100)
    assert placement_choose([replica], 100) is None


def test_long_prompts_are_computed_where_least_waits_and_not_far_behind() -> None:
    def replica(key: str, pending: int, most: int = 8_192) -> PrefillReplica:
        return PrefillReplica(key, pending, most)

    idle, busy = replica("idle", 10), replica("busy", 20)
    assert prefill_choose([busy, idle], PREFILL_REMOTE_TOKENS, 0) == idle
    assert prefill_choose([busy, idle], PREFILL_REMOTE_TOKENS, 1) is None
    assert prefill_choose([replica("late", PREFILL_BACKLOG_TOKENS)], 5_000, 0) is None
    assert prefill_choose([replica("small", 0, 1_000)], 1_000, 0) is None
