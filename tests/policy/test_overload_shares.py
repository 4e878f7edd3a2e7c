"""A fleet that is full of tenants of whom each asks for little more than its share."""

from policy.flow import INTERACTIVE, Flow
from policy.room import MORE, SHARE
from tests.policy.queue_fleet import replica_make, waiting_make
from tests.policy.test_fair_queue import numbered, queue_make
from tests.policy.test_rooms import choose, placed, rooms_make


def test_who_waits_for_long_is_over_its_share_however_few_rows_it_asks_for() -> None:
    flips: list[tuple[Flow, bool]] = []
    queue = queue_make(flips, capacity=100)
    first, second = numbered(1, "a"), numbered(2, "a")
    for waiting in (first, second, numbered(3, "b")):
        queue.push(waiting)
    # When nobody has served it for a second
    queue.tick(1_100, 1_100, 1.0)
    queue.divide(100)
    assert flips == [(Flow("a", INTERACTIVE), True)]
    # Then it stays so until nothing of it waits
    queue.tick(1_200, 100, 1.0)
    queue.divide(100)
    queue.start(first)
    assert flips[1:] == []
    queue.start(second)
    assert flips[1:] == [(Flow("a", INTERACTIVE), False)]


def test_prompts_of_flows_that_were_within_their_share_are_not_left_behind_without_bound() -> None:
    # Given a replica with prompts of flows that came to be over their share after they were placed
    rooms = rooms_make()
    for number in range(6):
        placed(rooms, f"tenant {number}", number=number, prompt=500)
        rooms.update(replica_make(rows=number + 1, pending=500 * (number + 1)))
        rooms.flipped(Flow(f"tenant {number}", INTERACTIVE), True)
        if choose(rooms) is None:
            break
    # Then some may be left behind, not all
    assert 2 <= number < 5
    assert choose(rooms, SHARE) is None


def test_an_over_share_flow_holds_no_more_of_one_replica_than_of_all() -> None:
    rooms = rooms_make(replica_make(row_limit=10))
    rooms.flipped(Flow("a", INTERACTIVE), True)
    held = 0
    while held < 10 and rooms.choose(
        waiting_make(held, "a", prompt=1), MORE, 0, may_use_held=False, own_part=0.3
    ):
        rooms.prefilled("r0", placed(rooms, "a", number=held, prompt=1))
        held += 1
    assert held == 3
    assert choose(rooms, MORE, tenant="b") == "r0"
