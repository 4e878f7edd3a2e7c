"""Where there is room for whom: those that yield do not stand in the way of those that do not."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.flow import BATCH, INTERACTIVE, Flow
from policy.room import IDLE, LEFT, MORE, SHARE
from policy.rooms import Rooms
from policy.waiting import Waiting
from tests.policy.queue_fleet import replica_make, waiting_make

WINDOW = 256


def rooms_make(*replicas: object) -> Rooms:
    rooms = Rooms(window_tokens=WINDOW, yielding_part=0.8, rng=Random(1))
    for replica in replicas or (replica_make(),):
        rooms.update(replica)  # type: ignore[arg-type]
    return rooms


def choose(
    rooms: Rooms,
    lane: int = SHARE,
    *,
    may_use_held: bool = False,
    **fields: object,
):
    waiting = waiting_make(**fields)  # type: ignore[arg-type]
    return rooms.choose(waiting, lane, 0.0, may_use_held=may_use_held)


def placed(
    rooms: Rooms,
    tenant: str = "a",
    *,
    key: str = "r0",
    number: int = 1,
    klass: str = INTERACTIVE,
    **fields: object,
) -> Waiting:
    waiting = waiting_make(number, tenant, klass, **fields)  # type: ignore[arg-type]
    rooms.place(key, waiting)
    return waiting


def test_the_least_prefill_then_the_most_memory_then_the_name() -> None:
    rooms = rooms_make(replica_make("r1", free=50), replica_make("r0", free=50))
    assert choose(rooms, prompt=16) == "r0"
    placed(rooms, key="r0", prompt=128)
    assert choose(rooms, prompt=16) == "r1"
    rooms = rooms_make(replica_make("r1", free=50), replica_make("r0", free=40))
    assert choose(rooms, prompt=16) == "r1"


def test_long_prompts_go_to_their_own_pool_if_it_has_room() -> None:
    rooms = rooms_make(replica_make("r0"), replica_make("r1", is_for_long_prompts=True))
    assert choose(rooms, prompt=5000) == "r1"
    assert choose(rooms, prompt=500) == "r0"
    placed(rooms, key="r1", prompt=5000)
    assert choose(rooms, prompt=5000) == "r0"


def test_a_replica_with_a_window_of_prompt_gets_no_more_until_it_is_computed() -> None:
    rooms = rooms_make()
    first = placed(rooms, prompt=WINDOW, cached=1)
    assert choose(rooms) == "r0"
    second = placed(rooms, number=2, prompt=1)
    assert choose(rooms) is None
    assert not rooms.has_room(SHARE)
    rooms.prefilled("r0", first)
    assert choose(rooms) == "r0"
    rooms.ended("r0", first, was_prefilled=True)
    rooms.ended("r0", second, was_prefilled=False)
    assert choose(rooms) == "r0"


def test_what_the_replica_reports_as_left_of_the_prompts_counts_if_it_is_less() -> None:
    rooms = rooms_make()
    placed(rooms, prompt=2000)
    assert choose(rooms) is None
    rooms.update(replica_make(rows=1, pending=200))
    assert choose(rooms) == "r0"


def test_prompts_and_rows_of_flows_over_their_share_are_not_in_the_way() -> None:
    rooms = rooms_make(replica_make(row_limit=3, max_rows=10))
    for number in range(3):
        placed(rooms, "noisy", number=number, prompt=1000)
    rooms.update(replica_make(row_limit=3, max_rows=10, rows=3, pending=3000))
    assert choose(rooms) is None
    rooms.flipped(Flow("noisy", INTERACTIVE), True)
    assert choose(rooms) == "r0"
    assert choose(rooms, MORE) is None
    rooms.flipped(Flow("noisy", INTERACTIVE), False)
    assert choose(rooms) is None


def test_batch_is_in_nobodys_way_and_everybody_in_its() -> None:
    rooms = rooms_make(replica_make(row_limit=3, max_rows=10))
    placed(rooms, "bulk", klass=BATCH, prompt=1000)
    placed(rooms, "bulk", klass=BATCH, number=2, prompt=1000)
    assert choose(rooms, SHARE) == choose(rooms, MORE) == "r0"
    assert choose(rooms, LEFT) is None
    rooms = rooms_make()
    placed(rooms, "chat", prompt=1000)
    assert choose(rooms, LEFT) is None


@pytest.mark.parametrize("lane", [MORE, LEFT])
def test_those_that_yield_leave_a_part_of_rows_and_memory_free(lane: int) -> None:
    limited = replica_make(rows=8, row_limit=10, max_rows=40)
    assert choose(rooms_make(replica_make(rows=7, row_limit=10, max_rows=40)), lane) == "r0"
    assert choose(rooms_make(limited), lane) is None
    assert choose(rooms_make(limited)) == "r0"
    full = replica_make(rows=32, row_limit=40, max_rows=40)
    assert choose(rooms_make(full), lane) is None
    assert choose(rooms_make(full)) == "r0"
    rooms = rooms_make(replica_make(free=100))
    rooms.update(replica_make(rows=1, free=29))
    assert choose(rooms, lane, prompt=15) == "r0"  # one block, and one each for three rows that grow
    assert choose(rooms, lane, prompt=16 * 7) is None
    assert choose(rooms, prompt=16 * 7) == "r0"


def test_memory_counts_for_everybody() -> None:
    rooms = rooms_make(replica_make(rows=1, free=10))
    assert choose(rooms, prompt=16 * 6) == "r0"
    assert choose(rooms, prompt=16 * 8) is None


def test_an_idle_replica_takes_what_it_can_hold_at_all_and_nothing_longer() -> None:
    rooms = rooms_make(replica_make(free=3, row_limit=1, max_rows=2, max_tokens=1000))
    assert choose(rooms, MORE, prompt=999, choices=8) == "r0"
    assert choose(rooms, prompt=1000) is None


def test_all_choices_of_a_request_need_rows() -> None:
    rooms = rooms_make(replica_make(rows=1, row_limit=4, max_rows=4))
    assert choose(rooms, choices=3) == "r0"
    assert choose(rooms, choices=4) is None


def test_one_that_takes_no_more_gets_nothing_and_one_that_has_nothing_to_do_is_known() -> None:
    rooms = rooms_make(replica_make("r0", takes_more=False), replica_make("r1", rows=1))
    assert not rooms.has_room(IDLE)
    assert choose(rooms) == "r1"
    assert choose(rooms, IDLE) is None
    rooms.update(replica_make("r0"))
    assert choose(rooms, IDLE) == "r0"
    placed(rooms, key="r0")
    assert not rooms.has_room(IDLE)


def test_one_that_is_kept_is_for_that_request_only() -> None:
    rooms = rooms_make(replica_make("r0", free=900, rows=1), replica_make("r1", free=50, rows=1))
    rooms.hold_for(waiting_make(prompt=100))
    assert rooms.held == "r0"
    assert choose(rooms) == "r1"
    assert choose(rooms, may_use_held=True, prompt=2000) == "r0"
    rooms.update(replica_make("r0", takes_more=False))
    assert rooms.held is None
    rooms.hold_for(waiting_make(prompt=100))
    assert rooms.held == "r1"
    rooms.gone("r1")
    assert rooms.held is None
    rooms.hold_for(waiting_make(prompt=100))
    assert rooms.held is None


def test_what_the_fleet_can_hold_follows_it() -> None:
    rooms = rooms_make(replica_make("r0", row_limit=0, max_rows=12), replica_make("r1", max_tokens=100))
    assert (rooms.capacity, rooms.most_tokens, len(rooms), "r0" in rooms) == (12 + 20, 8192, 2, True)
    rooms.update(replica_make("r1", max_tokens=9000, row_limit=5))
    assert (rooms.capacity, rooms.most_tokens) == (17, 9000)
    rooms.gone("r1")
    assert (rooms.capacity, rooms.most_tokens, set(rooms.keys())) == (12, 8192, {"r0"})
    rooms.gone("r0")
    assert (rooms.capacity, rooms.most_tokens, rooms.has_room(SHARE)) == (0, 0, False)


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_sums_by_standing_are_those_of_the_parts_whatever_happened(seed: int) -> None:
    rng, rooms = Random(seed), rooms_make(replica_make("r0"), replica_make("r1"))
    flows = [Flow("a", INTERACTIVE), Flow("b", INTERACTIVE), Flow("c", BATCH)]
    live: list[tuple[str, Waiting, bool]] = []
    over: set[Flow] = set()
    for number in range(60):
        what = rng.choice(["place", "place", "prefilled", "ended", "flip"])
        if what == "place":
            flow, key = rng.choice(flows), rng.choice(["r0", "r1"])
            fields = {"number": number, "klass": flow.klass, "prompt": rng.randint(1, 400)}
            live.append((key, placed(rooms, flow.tenant, key=key, **fields), False))  # type: ignore[arg-type]
        elif what == "flip":
            flow = rng.choice(flows[:2])
            rooms.flipped(flow, flow not in over)
            over ^= {flow}
        elif live:
            key, waiting, was_prefilled = live.pop(rng.randrange(len(live)))
            if what == "ended":
                rooms.ended(key, waiting, was_prefilled=was_prefilled)
            else:
                if not was_prefilled:
                    rooms.prefilled(key, waiting)
                live.append((key, waiting, True))
        for key in ("r0", "r1"):
            standing = {flow: 2 if flow.klass == BATCH else int(flow in over) for flow in flows}
            mine = [(standing[w.flow], w, done) for at, w, done in live if at == key]
            assert rooms[key].yielding_rows == [sum(s > better for s, _, _ in mine) for better in range(3)]
            assert rooms[key].tokens_before == [
                sum(w.new_tokens for s, w, done in mine if s <= worse and not done) for worse in range(3)
            ]
            assert rooms[key].parts.keys() == {w.flow for _, w, _ in mine}


def test_rows_that_yield_give_way_in_memory_too() -> None:
    # Given a replica whose memory is full of a flow that was alone
    rooms = rooms_make(replica_make(free=100))
    rooms.update(replica_make(rows=0, free=100))
    for number in range(10):
        placed(rooms, "noise", number=number, prompt=100)
        rooms.prefilled("r0", waiting_make(number, "noise", prompt=100))
    rooms.update(replica_make(rows=10, free=2))
    assert choose(rooms, prompt=200) is None
    # When that flow is over its share, for somebody else has come
    rooms.flipped(Flow("noise", INTERACTIVE), True)
    # Then who is within its share may begin, as long as their prompts' blocks are enough; who is not may not
    assert choose(rooms, prompt=200) == "r0"
    assert choose(rooms, prompt=999) is None
    assert choose(rooms, MORE, tenant="c", prompt=200) is None
