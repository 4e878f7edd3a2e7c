"""The lease's laws: a term has one owner, two never hold it, and two seconds after a death somebody does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.lease import LOOKS, Grant, Lease
from tests.dispatch.lease_world import TIMES, World

OWN = Grant(True, 7, "a", TIMES.valid_ms)
FREE = Grant(False, 6, "", 0)
OTHERS = Grant(False, 8, "b", 900)


def active_lease() -> Lease:
    lease = Lease(0)
    lease.asks(0)
    lease.granted(OWN, 1)
    assert lease.may_act(1)
    return lease


@given(st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_whatever_happens_a_term_has_one_owner_and_in_the_end_one_is_active(seed: int) -> None:
    world = World(seed)
    for _ in range(12):
        world.fault()
        world.run(world.random.choice([50, 700, 2_500]))
    world.heal()
    world.run(9_000)
    assert [member.acts for member in world.members].count(True) == 1
    assert next(m for m in world.members if m.acts).lease.term == max(world.owners)


@given(st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_a_holder_that_dies_is_followed_within_two_seconds(seed: int) -> None:
    world = World(seed, members=2)
    world.slowest_ms = 20
    world.run(3_000 + world.random.uniform(0, 1_000))
    (holder,) = [member for member in world.members if member.acts]
    holder.alive = False
    died, term = world.now, holder.lease.term
    world.members.remove(holder)
    while not world.members[0].acts:
        world.run(10)
        assert world.now - died < 1_700
    assert world.members[0].lease.term > term


@given(st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_while_the_store_is_away_the_active_one_serves_on_alone_and_after_it_too(seed: int) -> None:
    world = World(seed)
    world.slowest_ms = 20
    world.run(3_000)
    (holder,) = [member for member in world.members if member.acts]
    for member in world.members:
        member.is_reachable = False
    for _ in range(100):
        world.run(100)
        assert [member for member in world.members if member.acts] == [holder]
    if world.random.random() < 0.5:  # it comes back empty
        world.store.wipe()
    for member in world.members:
        member.is_reachable = True
    world.run(3_000)
    assert [member for member in world.members if member.acts] == [holder]


@given(st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_what_lay_before_a_store_that_stood_still_takes_nothing(seed: int) -> None:
    world = World(seed)
    world.slowest_ms = 20
    world.run(3_000 + world.random.uniform(0, 1_000))
    (holder,) = [member for member in world.members if member.acts]
    world.store.thaws_ms = world.now + world.random.uniform(0, 6_000)
    for _ in range(90):
        world.run(100)
        assert [member for member in world.members if member.acts] == [holder]


def test_who_slept_past_its_lease_does_nothing_before_it_has_asked() -> None:
    lease = active_lease()
    assert lease.may_act(TIMES.valid_ms - 1)
    assert not lease.may_act(TIMES.valid_ms)
    assert lease.next_ms == TIMES.valid_ms


def test_who_slept_and_finds_another_is_a_standby() -> None:
    lease = active_lease()
    lease.asks(5_000)
    lease.granted(OTHERS, 5_010)
    assert not lease.may_act(5_010)
    assert (lease.active_address, lease.seen_term) == ("b", 8)


def test_who_slept_and_finds_the_store_away_serves_on() -> None:
    lease = active_lease()
    lease.asks(5_000)
    lease.failed(5_400)
    assert lease.may_act(5_400)


@pytest.mark.parametrize("heard", [6, 7])
def test_a_term_that_is_not_higher_deposes_nobody(heard: int) -> None:
    lease = active_lease()
    lease.heard(heard, 10)
    assert lease.may_act(10)


def test_a_higher_term_deposes_also_while_the_store_is_away() -> None:
    lease = active_lease()
    lease.asks(500)
    lease.failed(900)
    lease.heard(8, 950)
    assert not lease.may_act(950)
    lease.asks(950)
    lease.failed(1_400)
    assert not lease.may_act(1_400)


def test_an_answer_that_took_longer_than_the_lease_is_none() -> None:
    lease = Lease(0)
    lease.asks(0)
    lease.granted(OWN, TIMES.valid_ms)
    assert not lease.may_act(TIMES.valid_ms)
    assert lease.next_ms == TIMES.valid_ms


def test_a_standby_takes_nothing_right_after_the_store_was_away() -> None:
    lease = Lease(0)
    assert lease.asks(0).takes_after == LOOKS
    lease.granted(FREE, 10)
    assert lease.asks(11).takes_after == FREE.term
    lease.failed(500)
    for moment in (750, 1_700):
        assert lease.asks(moment).takes_after == LOOKS
        lease.granted(FREE, moment + 10)
    assert lease.asks(1_770).takes_after == FREE.term


def test_a_standby_takes_what_it_saw_free_and_nothing_else() -> None:
    lease = Lease(0)
    lease.asks(0)
    lease.granted(FREE, 10)
    assert lease.next_ms <= 11
    assert lease.asks(11).takes_after == FREE.term
    lease.granted(OTHERS, 20)
    assert lease.asks(300).takes_after == LOOKS
