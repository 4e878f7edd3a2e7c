"""Where a request begins, by predicted milliseconds: what a hit is worth, and what nothing is worth."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy import router
from policy.placement import LONG_PROMPT_TOKENS, Replica
from policy.prefix import Chain
from policy.room import SHARE
from policy.rooms import Rooms
from policy.router_index import NAME_TOKENS
from policy.step_cost import StepCost
from policy.waiting import Waiting
from tests.policy.queue_fleet import replica_make, waiting_make

WINDOW = 256
LARGE = StepCost(base_ms=14, row_ms=0.132, token_ms=0.1, context_ms=30e-6)
NAMES = [f"name {number}" for number in range(16)]  # of a prompt of 1,024 tokens


def rooms_make(*replicas: Replica, seed: int = 1, window_tokens: int = WINDOW) -> Rooms:
    rooms = Rooms(window_tokens=window_tokens, yielding_part=0.8, rng=Random(seed))
    for replica in replicas:
        rooms.update(replica)
    return rooms


def large(key: str, **fields: object) -> Replica:
    return replica_make(key, cost=LARGE, row_limit=118, max_rows=500, **fields)  # type: ignore[arg-type]


def fleet(count: int = 8, **fields: object) -> list[Replica]:
    return [large(f"r{number}", **fields) for number in range(count)]


def asks(names: list[str] = NAMES, *, prompt: int = 1_030, number: int = 1) -> Waiting:
    waiting = waiting_make(number, prompt=prompt)
    waiting.chains = (Chain(names),)
    return waiting


def choose(rooms: Rooms, waiting: Waiting, now_ms: float = 0.0) -> str | None:
    return rooms.choose(waiting, SHARE, now_ms, may_use_held=False)


def holds(rooms: Rooms, key: str, names: list[str] = NAMES) -> None:
    rooms.prefixes.reported(key, names, ())


# -- hit and load --------------------------------------------------------------------------------------------


def test_it_begins_where_its_prefix_is() -> None:
    rooms = rooms_make(*fleet())
    holds(rooms, "r5")
    assert {choose(rooms, asks(number=number)) for number in range(20)} == {"r5"}


def test_the_longer_prefix_wins() -> None:
    rooms = rooms_make(*fleet())
    holds(rooms, "r5", NAMES[:6])
    holds(rooms, "r3", NAMES)
    assert choose(rooms, asks()) == "r3"


@pytest.mark.parametrize("others", [0, 6])
def test_a_hit_is_worth_more_where_somebody_would_wait_for_what_is_computed_anew(others: int) -> None:
    # Given r1, which holds 256 tokens of the prompt and computes 300 others before it
    rooms = rooms_make(*fleet(8), window_tokens=1_000)
    holds(rooms, "r1", NAMES[:4])
    rooms.place("r1", waiting_make(100, "b", prompt=300))
    # When the other replicas compute nothing, it is done sooner on one of these; else they do not gain by it
    for number in range(others):
        rooms.place(f"r{number + 2}", waiting_make(number + 2, "b", prompt=100))
    assert (choose(rooms, asks()) == "r1") == bool(others)


@pytest.mark.parametrize(("names", "winner"), [(1, "r0"), (4, "r1")])
def test_a_hit_is_worth_the_prompt_tokens_that_it_spares(names: int, winner: str) -> None:
    # Given r1 that holds 64 or 256 tokens of the prompt, and 200 others to compute before it
    rooms = rooms_make(large("r0"), large("r1"))
    holds(rooms, "r1", NAMES[:names])
    rooms.place("r1", waiting_make(2, "b", prompt=200))
    # Then it is chosen only where that spares more than the wait costs
    assert choose(rooms, asks()) == winner


def test_where_its_prefix_is_and_no_room_others_are_used() -> None:
    rooms = rooms_make(*fleet())
    holds(rooms, "r5")
    rooms.place("r5", waiting_make(2, "b", prompt=3_000))
    assert choose(rooms, asks()) not in (None, "r5")


def test_fewer_rows_leave_more_of_a_step_for_the_prompt() -> None:
    rooms = rooms_make(large("r0", rows=100), large("r1", rows=40))
    assert choose(rooms, waiting_make(prompt=1_000)) == "r1"


def test_a_faster_replica_is_worth_its_queue() -> None:
    slow = replace(large("r0"), cost=replace(LARGE, token_ms=0.4))
    rooms = rooms_make(slow, large("r1"))
    rooms.place("r1", waiting_make(2, "b", prompt=200))
    assert choose(rooms, waiting_make(prompt=1_000)) == "r1"


def test_what_is_held_counts_on_slow_machines_too() -> None:
    # Given replicas whose steps take longer without any prompt than they are to
    slow = [
        replace(large(f"r{n}"), cost=StepCost(base, 0.1, 2.0, 1e-4, 1e-3)) for n, base in ((0, 38), (1, 53))
    ]
    rooms = rooms_make(*slow)
    holds(rooms, "r1", NAMES[:3])
    assert choose(rooms, asks(prompt=280)) == "r1"


# -- the cold index ------------------------------------------------------------------------------------------


def test_the_next_turn_finds_its_replica_though_nothing_was_reported() -> None:
    # Given prompts that nobody knows, of two dispatchers that know nothing of each other
    homes = []
    for seed in (1, 2):
        rooms = rooms_make(*fleet(), seed=seed)
        homes.append([choose(rooms, asks([f"{number}/{name}" for name in NAMES])) for number in range(40)])
    # Then both send them to the same replicas, and use most of these
    assert homes[0] == homes[1]
    assert len(set(homes[0])) >= 6


def test_the_ring_passes_over_a_replica_with_many_more_rows_than_the_others() -> None:
    # Given a prompt so short that more rows do not make it much later
    waiting = asks(NAMES[:4], prompt=300)
    rooms = rooms_make(*fleet())
    home = choose(rooms, waiting)
    assert home is not None
    rooms = rooms_make(*[large(one.key, rows=3 if one.key == home else 2) for one in fleet()])
    assert choose(rooms, waiting) == home
    rooms = rooms_make(*[large(one.key, rows=9 if one.key == home else 2) for one in fleet()])
    assert choose(rooms, waiting) not in (None, home)


def test_a_lost_replica_takes_only_its_own_prompts_along() -> None:
    def homes(rooms: Rooms) -> list[str | None]:
        return [choose(rooms, asks([f"{number}/{name}" for name in NAMES])) for number in range(60)]

    rooms = rooms_make(*fleet())
    before = homes(rooms)
    rooms.gone("r3")
    after = homes(rooms)
    assert all(one == other for one, other in zip(before, after, strict=True) if one != "r3")
    assert "r3" in before
    assert "r3" not in after


# -- staleness -----------------------------------------------------------------------------------------------


def test_one_that_has_not_reported_for_a_second_gets_nothing_while_another_has() -> None:
    rooms = rooms_make(large("r0", free=20_000), large("r1"))
    rooms.update(replace(large("r0", free=20_000), reported_ms=0.0))
    holds(rooms, "r0")
    assert choose(rooms, asks(), router.SUSPECT_MS) == "r0"
    assert choose(rooms, asks(), router.SUSPECT_MS + 1) == "r1"


def test_where_all_are_suspect_the_least_bad_gets_some_tokens() -> None:
    rooms = rooms_make(*[replace(one, reported_ms=0.0) for one in fleet(2, rows=1)])
    holds(rooms, "r1")
    waiting = asks()
    assert choose(rooms, waiting, 5_000) == "r1"
    for number, key in enumerate(("r0", "r1")):
        rooms.place(key, waiting_make(10 + number, "b", prompt=router.SUSPECT_TOKENS - 1_000))
        rooms.update(replace(large(key, rows=2), reported_ms=0.0))
    assert choose(rooms, waiting, 5_000) is None
    assert choose(rooms, waiting_make(prompt=200), 5_000) is not None


def test_what_a_stale_replica_was_sent_is_all_still_to_do() -> None:
    # Given one that reported its prompts as computed, but for a few tokens, and one with a little to do
    rooms = rooms_make(large("r0"), large("r1"))
    for key in ("r0", "r1"):
        rooms.place(key, waiting_make(key, "b", prompt=240 if key == "r0" else 100))
        rooms.update(replace(large(key, rows=1, pending=1 if key == "r0" else 100), reported_ms=0.0))
    assert choose(rooms, waiting_make(prompt=600), router.STALE_MS) == "r0"
    # Then it is believed for as long as that is fresh
    assert choose(rooms, waiting_make(prompt=600), router.STALE_MS + 1) == "r1"


def test_on_a_stale_replica_all_output_has_to_fit() -> None:
    rooms = rooms_make(replace(large("r0"), reported_ms=0.0))
    rooms.update(replace(large("r0", rows=1, free=40), reported_ms=0.0))
    waiting = waiting_make(prompt=320, output=400)
    assert choose(rooms, waiting, router.STALE_MS) == "r0"
    assert choose(rooms, waiting, router.STALE_MS + 1) is None


# -- laws ----------------------------------------------------------------------------------------------------

some_replicas = st.lists(
    st.builds(
        lambda rows, free, pending, takes, tokens: {
            "rows": rows, "free": free, "pending": pending, "takes_more": takes, "max_tokens": tokens
        },
        st.integers(0, 130),
        st.integers(0, 300),
        st.integers(0, 400),
        st.booleans(),
        st.sampled_from([500, 8192]),
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(some_replicas, st.integers(1, 3_000), st.integers(0, 11), st.integers(0, 16), st.integers(0, 9))
def test_never_an_infeasible_replica_and_the_same_for_the_same_seed(
    kinds: list[dict[str, int]], prompt: int, holder: int, names: int, seed: int
) -> None:
    # Given whatever the replicas report, and a prefix that one of them holds
    def ask() -> tuple[Rooms, str | None]:
        rooms = rooms_make(*[large(f"r{number}", free=300) for number in range(len(kinds))], seed=seed)
        for number, kind in enumerate(kinds):
            rooms.update(large(f"r{number}", **kind))
        if holder < len(kinds):
            holds(rooms, f"r{holder}", NAMES[:names])
        return rooms, choose(rooms, asks(NAMES[: prompt // NAME_TOKENS], prompt=prompt))

    def can_run(number: int) -> bool:
        kind = kinds[number]
        needed = -(-(prompt + 1) // 16) + kind["rows"] + 2
        is_idle = kind["rows"] == 0
        has_rows = is_idle or kind["rows"] + 1 <= 118
        return bool(
            kind["takes_more"]
            and prompt < kind["max_tokens"]
            and has_rows
            and (is_idle or kind["free"] >= needed)
        )

    (_, key), (_, again) = ask(), ask()
    # Then the request begins where it can run, if it can anywhere
    assert key == again
    assert (key is not None) == any(can_run(number) for number in range(len(kinds)))
    assert key is None or can_run(int(key[1:]))


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 110),
    st.integers(0, 250),
    st.integers(1, 5_000),
    st.integers(0, 4_999),
    st.integers(1, 100),
    st.sampled_from([LARGE, None, StepCost(20, 2, 1.5, 0, 0.001)]),
)
def test_more_to_do_is_never_better_and_more_held_never_worse(
    rows: int, pending: int, prompt: int, cached: int, more: int, cost: StepCost | None
) -> None:
    def score(rows: int, pending: int, prompt: int, cached: int) -> float:
        rooms = rooms_make(replace(large("r0"), cost=cost))
        rooms.place("r0", waiting_make(2, "b", prompt=10_000))
        rooms.update(replace(large("r0", rows=rows, pending=pending), cost=cost))
        waiting = waiting_make(prompt=prompt)
        return rooms["r0"].score_ms(waiting, 0, cached, is_stale=False)

    cached = min(cached, prompt - 1)
    here = score(rows, pending, prompt, cached)
    assert score(rows, pending + more, prompt, cached) >= here
    assert score(rows, pending, prompt + more, cached) >= here
    assert score(rows, pending, prompt, min(prompt, cached + more)) <= here
    assert score(min(118, rows + more), pending, prompt, cached) >= here - 1e-9


def test_those_that_are_about_as_good_share_what_comes() -> None:
    rooms = rooms_make(*fleet(), seed=3)
    assert len({choose(rooms, waiting_make(number, prompt=100)) for number in range(60)}) >= 4


def test_where_all_that_are_about_as_good_have_many_rows_the_best_of_them_it_is() -> None:
    # Given the two replicas of long prompts, busy, and others that are idle and of the other pool
    busy = [replace(large(f"l{number}", rows=60), is_for_long_prompts=True) for number in range(2)]
    rooms = rooms_make(*busy, *fleet(6))
    assert choose(rooms, asks(prompt=LONG_PROMPT_TOKENS)) == "l0"
