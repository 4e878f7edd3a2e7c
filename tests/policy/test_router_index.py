"""What is known of who holds which prefixes: reports are exact, guesses fade, and nothing grows for ever."""

from math import exp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.prefix import Chain
from policy.router_index import FADE_MS, FORGOTTEN_MS, NAME_TOKENS, PrefixHolders

NAMES = ["a", "ab", "abc", "abcd"]


def hits(holders: PrefixHolders, names: list[str] = NAMES, now_ms: float = 0.0) -> dict[str, float]:
    return holders.hits((Chain(names),), now_ms)


def test_what_is_reported_is_held_until_it_is_reported_as_gone() -> None:
    holders = PrefixHolders()
    holders.reported("r0", NAMES, ())
    holders.reported("r1", NAMES[:2], ())
    assert hits(holders, now_ms=1e9) == {"r0": 4 * NAME_TOKENS, "r1": 2 * NAME_TOKENS}
    holders.reported("r0", (), NAMES[1:])
    assert hits(holders) == {"r0": NAME_TOKENS, "r1": 2 * NAME_TOKENS}
    holders.reported("r1", ["x"], (), is_reset=True)
    assert hits(holders) == {"r0": NAME_TOKENS}
    holders.gone("r0")
    assert hits(holders) == {}
    assert hits(holders, ["x"]) == {"r1": NAME_TOKENS}


def test_a_gap_ends_the_prefix() -> None:
    holders = PrefixHolders()
    holders.reported("r0", [NAMES[0], NAMES[2], NAMES[3]], ())
    holders.reported("r1", NAMES[1:], ())
    assert hits(holders) == {"r0": NAME_TOKENS}
    assert holders.reported_tokens("r0", Chain(NAMES)) == NAME_TOKENS
    assert holders.reported_tokens("r1", Chain(NAMES)) == 0


def test_a_guess_fades_and_a_report_makes_it_certain() -> None:
    holders = PrefixHolders()
    holders.joined("r0")
    holders.placed("r0", (Chain(NAMES),), 0.0)
    holders.placed("r0", (Chain(NAMES),), 0.0)  # the same beginning again: now all of it is kept
    assert hits(holders) == {"r0": 4 * NAME_TOKENS}
    assert hits(holders, now_ms=FADE_MS) == {"r0": pytest.approx(4 * NAME_TOKENS * exp(-1))}
    assert hits(holders, now_ms=FORGOTTEN_MS) == {}
    assert holders.reported_tokens("r0", Chain(NAMES)) == 0
    holders.reported("r0", NAMES, ())
    holders.placed("r0", (Chain(NAMES),), 5.0)
    assert hits(holders, now_ms=FORGOTTEN_MS) == {"r0": 4 * NAME_TOKENS}
    assert holders.reported_tokens("r0", Chain(NAMES)) == 4 * NAME_TOKENS


def test_one_that_keeps_no_prefixes_is_not_guessed_to_hold_any() -> None:
    holders = PrefixHolders()
    holders.placed("r0", (Chain(NAMES),), 0.0)
    assert (hits(holders), len(holders)) == ({}, 0)


def test_the_best_of_several_kinds_of_kv_counts() -> None:
    holders = PrefixHolders()
    holders.reported("r0", NAMES, ())
    holders.reported("r0", ["other"], ())
    assert holders.hits((Chain(NAMES), Chain(["other"])), 0.0) == {"r0": 4 * NAME_TOKENS}


def test_names_are_made_no_further_than_somebody_holds_them() -> None:
    made: list[str] = []

    def names() -> object:
        for name in NAMES:
            made.append(name)
            yield name

    holders, chain = PrefixHolders(), Chain(names())  # type: ignore[arg-type]
    holders.joined("r0")
    assert holders.hits((chain,), 0.0) == {}
    holders.placed("r0", (chain,), 0.0)
    assert made == NAMES[:1]
    holders.reported("r0", NAMES[:2], ())
    assert holders.hits((chain,), 0.0) == {"r0": 2 * NAME_TOKENS}
    assert made == NAMES[:3]


def test_it_is_bounded_and_forgets_the_least_recently_told_first() -> None:
    holders = PrefixHolders(most_names=3)
    holders.reported("r0", NAMES[:3], ())
    holders.placed("r0", (Chain(NAMES[:1]),), 0.0)
    holders.reported("r1", ["other"], ())
    assert len(holders) == 3
    assert hits(holders) == {"r0": NAME_TOKENS}


def test_replicas_that_come_and_go_leave_nothing_behind() -> None:
    holders = PrefixHolders()
    for number in range(200):
        holders.reported(f"r{number}", NAMES, ())
        holders.gone(f"r{number}")
    assert max(len(entry) for entry in holders._entries.values()) <= 2
    assert hits(holders) == {}


events = st.tuples(
    st.sampled_from(["r0", "r1", "r2"]),
    st.sampled_from(["cached", "cached", "evicted", "reset", "gone"]),
    st.sets(st.sampled_from(NAMES)),
)


@settings(max_examples=200)
@given(st.lists(events, max_size=30))
def test_it_says_what_the_replicas_said_whatever_the_order(told: list[tuple[str, str, set[str]]]) -> None:
    holders, held = PrefixHolders(), {key: set[str]() for key in ("r0", "r1", "r2")}
    for key, what, names in told:
        if what == "gone":
            holders.gone(key)
            held[key].clear()
        elif what == "evicted":
            holders.reported(key, (), names)
            held[key] -= names
        else:
            holders.reported(key, names, (), is_reset=what == "reset")
            held[key] = names | (set() if what == "reset" else held[key])
    expected = {}
    for key, names in held.items():
        depth = next((depth for depth, name in enumerate(NAMES) if name not in names), len(NAMES))
        if depth:
            expected[key] = depth * NAME_TOKENS
    assert hits(holders) == expected
