"""Random lives of a fleet against the production dispatcher: nothing lost, doubled, misrouted or left behind.

A failing example prints the operations that lead to it; `World` checks order, weights and KV as it goes.
"""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dispatch.simulation import World

CALM = ["submit", "submit", "burst", "cancel", "time", "time", "worker_start"]
WORKERS = [*CALM, "worker_start", "worker_kill", "worker_freeze", "worker_drain", "dispatcher_freeze"]
EVERYTHING = [
    *CALM,
    *WORKERS,
    "worker_start",
    "gateway_restart",
    "gateway_freeze",
    "cut",
    "dispatcher_restart",
]

fixed = settings(deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])


def live(seed: int, operations: list[str]) -> World:
    world = World(seed)
    for operation in operations:
        getattr(world, operation)()
    world.heal()
    return world


def endings_check(world: World) -> None:
    for gateway in world.gateways.values():
        if not gateway.alive:
            continue
        for sid, stream in gateway.streams.items():
            assert stream.settled, f"{gateway.incarnation}/{sid} never ended: {stream}"
            if not world.faults:
                assert stream.settled != "timeout", f"{sid} was cancelled and nobody answered: {stream}"
                words = [word for word in stream.final_words if word != "lost"]
                assert len(words) <= 1, f"{sid} ended more than once: {stream}"


def tables_check(world: World) -> None:
    core = world.dispatcher.core
    assert {g.incarnation: g.rows for g in core._members.gateways.values() if g.rows} == {}
    for worker in core._members.workers.values():
        assert worker.placed == {}
        assert (worker._rows, worker._unprefilled_blocks, worker._unreported_tokens) == (0, 0, 0)
        assert (worker._helpers, worker.pending_tokens, len(worker._unreported)) == ({}, 0, 0)
    for version in core._versions:
        assert version.queue.flows() == []
        assert version.queue.tenants() == 0
    world.depart()
    assert (core._members.gateways, core._members.workers, list(core._versions)) == ({}, {}, [])
    assert (world.dispatcher.server._peers, world.dispatcher.server._strangers) == ({}, {})


seeds = st.integers(0, 2**32)


@settings(fixed, max_examples=120)
@given(seed=seeds, operations=st.lists(st.sampled_from(WORKERS), min_size=5, max_size=60))
def test_with_workers_that_come_and_go_every_request_ends_exactly_once(
    seed: int, operations: list[str]
) -> None:
    world = live(seed, operations)
    endings_check(world)
    assert {world.joins[incarnation] for incarnation in world.gateways} == {1}, "a gateway was disconnected"
    tables_check(world)


@settings(fixed, max_examples=200)
@given(seed=seeds, operations=st.lists(st.sampled_from(EVERYTHING), min_size=5, max_size=60))
def test_whatever_breaks_every_request_ends_and_nothing_is_left(seed: int, operations: list[str]) -> None:
    world = live(seed, operations)
    endings_check(world)
    tables_check(world)
