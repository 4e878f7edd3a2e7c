"""Whatever comes: nothing is lost or doubled, a refusal changes nothing, nothing starts late."""

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policy.flow import BATCH, BATCH_URGENT, INTERACTIVE, Flow
from policy.model_queue import ModelQueue
from policy.placement import Replica
from policy.queue_settings import QueueSettings
from policy.waiting import Waiting
from tests.policy.queue_fleet import COST, Fleet, replica_make, waiting_make

SMALL = QueueSettings(queue_least=4, queue_most=12, queue_bytes=40_000, hold_ms=300)


class World:
    """Random events, and a book of where every request is."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.queue = ModelQueue(SMALL, 0.0, Random(seed))
        self.now_ms = 0.0
        self.number = 0
        self.waiting: dict[object, Waiting] = {}
        self.placed: dict[object, tuple[Waiting, str]] = {}
        self.hosts: dict[str, dict[str, Any]] = {}
        self.totals: Counter[tuple[str, Flow]] = Counter()

    def view(self, key: str) -> Replica:
        mine = [waiting for waiting, at in self.placed.values() if at == key]
        host = self.hosts[key]
        used = sum(waiting.prompt_tokens // 16 + waiting.choices for waiting in mine)
        return replica_make(
            key,
            rows=sum(waiting.choices for waiting in mine),
            free=max(0, host["blocks"] - used),
            **host["shape"],
        )

    def event(self) -> None:
        self.now_ms += self.rng.choice([0, 0, 1, 40, 300])
        name = self.rng.choice(
            ["submit"] * 5
            + ["take", "take", "end", "end", "remove", "refuse", "work", "tick", "replica", "adopt"]
        )
        getattr(self, f"do_{name}")()
        self.check()

    def do_submit(self) -> None:
        self.number += 1
        waiting = waiting_make(
            self.number,
            self.rng.choice("abc"),
            self.rng.choice([INTERACTIVE, INTERACTIVE, BATCH]),
            at_ms=self.now_ms,
            weight=self.rng.choice([0.5, 1.0, 3.0]),
            deadline_ms=self.rng.choice([200, 2_000, 60_000]),
            prompt=self.rng.choice([10, 200, 900, 5_000]),
            choices=self.rng.choice([1, 1, 3]),
            is_retry=self.rng.choice([None, True, False]),
        )
        before = self.snapshot()
        if self.queue.submit(waiting, self.now_ms) is None:
            self.waiting[waiting.key] = waiting
        else:
            assert self.snapshot() == before

    def do_adopt(self) -> None:
        """A replica says that it runs what nobody here knew."""
        if not self.hosts:
            return
        self.number += 1
        waiting = waiting_make(
            self.number,
            self.rng.choice("abc"),
            self.rng.choice([INTERACTIVE, BATCH, BATCH_URGENT]),
            weight=self.rng.choice([0.5, 1.0, 3.0]),
            prompt=0,
            output=0,
            choices=self.rng.choice([1, 3]),
        )
        at = self.rng.choice(list(self.hosts))
        self.placed[waiting.key] = waiting, at
        self.queue.replica_update(self.view(at))
        self.queue.adopt(waiting, at, self.now_ms)

    def do_take(self) -> None:
        while placement := self.queue.take(self.now_ms):
            waiting, key = placement
            assert self.waiting.pop(waiting.key) is waiting
            assert self.now_ms <= waiting.latest_ms
            assert waiting.prompt_tokens < self.hosts[key]["shape"]["max_tokens"]
            assert self.hosts[key]["shape"]["takes_more"]
            self.placed[waiting.key] = waiting, key
        held = self.queue._placer.rooms.held
        states = [state for lane in self.queue._queues for state in lane.flows.values()]
        heads = [head for state in states if (head := state.waiting.head())]
        for key in self.hosts:  # none is idle while the first of any flow fits there
            view = self.view(key)
            if view.rows == 0 and view.takes_more and key != held:
                assert not [head for head in heads if head.prompt_tokens < view.max_tokens]
        self.collect()

    def collect(self) -> None:
        for waiting in (*self.queue.expired(self.now_ms), *self.queue.unservable()):
            assert self.waiting.pop(waiting.key) is waiting

    def do_end(self) -> None:
        if self.placed:
            key = self.rng.choice(list(self.placed))
            if self.rng.random() < 0.7:
                self.queue.prefilled(key)
            if self.rng.random() < 0.7:
                self.queue.ended(key, self.now_ms)
                self.queue.replica_update(self.view(self.placed.pop(key)[1]))

    def do_remove(self) -> None:
        key = self.rng.randint(1, self.number + 1)
        assert self.queue.remove(key) is self.waiting.pop(key, None)

    def do_refuse(self) -> None:
        if self.placed:
            waiting, at = self.placed.pop(self.rng.choice(list(self.placed)))
            self.queue.requeue(waiting, self.now_ms)
            self.waiting[waiting.key] = waiting
            self.queue.replica_update(self.view(at))

    def do_work(self) -> None:
        for waiting, at in self.placed.values():
            self.totals[at, waiting.flow] += self.rng.randint(0, 20_000)
            for _ in range(2):
                self.queue.worked(at, waiting.flow, self.totals[at, waiting.flow])

    def do_tick(self) -> None:
        self.queue.tick(self.now_ms)

    def do_replica(self) -> None:
        key = self.rng.choice(["r0", "r1", "r2"])
        if key in self.hosts and self.rng.random() < 0.3:
            del self.hosts[key]
            lost = [waiting for waiting, at in self.placed.values() if at == key]
            assert sorted(w.key for w in self.queue.replica_gone(key)) == sorted(w.key for w in lost)  # type: ignore[type-var]
            for waiting in lost:
                del self.placed[waiting.key]
        else:
            self.hosts[key] = {
                "blocks": self.rng.choice([20, 400, 1000]),
                "shape": {
                    "max_rows": self.rng.choice([2, 8]),
                    "row_limit": self.rng.choice([0, 2, 6]),
                    "max_tokens": self.rng.choice([300, 8192]),
                    "takes_more": self.rng.random() < 0.8,
                    "cost": self.rng.choice([None, COST]),
                },
            }
            self.queue.replica_update(self.view(key))

    def snapshot(self) -> tuple[Any, ...]:
        queue = self.queue
        views = [
            (view.flow, view.weight, view.queued, view.running, view.queued_us) for view in queue.flows()
        ]
        turns = [[s.turn for s in q.turns()] for q in queue._queues]
        return views, turns, queue.over_share(), queue.level, queue.drain_rate, queue.tenants()

    def check(self) -> None:
        queue = self.queue
        late = {waiting.key for waiting in queue._backlog.late}
        assert queue._backlog.waiting.keys() | late == self.waiting.keys()
        assert queue._placer.placed.keys() == self.placed.keys()
        waiting = Counter(w.flow for w in self.waiting.values() if w.key not in late)
        running: Counter[Flow] = Counter()
        for request, _ in self.placed.values():
            running[request.flow] += request.choices
        views = {view.flow: (view.queued, view.running) for view in queue.flows()}
        assert views == {flow: (waiting[flow], running[flow]) for flow in waiting | running}
        assert queue.depth(INTERACTIVE) + queue.depth(BATCH) == sum(waiting.values())
        assert 0 <= queue.level <= 5
        assert queue.wait_ms >= 0

    def finish(self) -> None:
        for key in list(self.waiting):
            self.queue.remove(key)
        for key in list(self.placed):
            self.queue.ended(key, self.now_ms)
        self.queue.expired(self.now_ms)
        placer, queue = self.queue._placer, self.queue
        for lane in queue._queues:
            assert (lane.depth, lane.queued_us, lane.queued_tokens, lane.flows) == (0, 0, 0, {})
            assert lane.weight == pytest.approx(0, abs=1e-9)
            assert lane.queued_weight == pytest.approx(0, abs=1e-9)
            assert list(lane.turns()) == []
        assert (len(queue._backlog.waiting), len(queue._backlog.deadlines), placer.placed) == (0, 0, {})
        assert queue._backlog.deadlines.entries <= 32
        for key in self.hosts:
            room = placer.rooms[key]
            assert (room.parts, room.yielding_rows, room.tokens_before) == ({}, [0, 0, 0], [0, 0, 0])
        assert placer.rooms.held is None
        assert queue.over_share() == frozenset()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_is_lost_or_doubled_and_nothing_stays_behind(seed: int) -> None:
    world = World(seed)
    for _ in range(80):
        world.event()
    world.finish()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32))
def test_the_same_history_gives_the_same_decisions(seed: int) -> None:
    first, second = World(seed), World(seed)
    for _ in range(60):
        first.event()
        second.event()
        assert first.snapshot() == second.snapshot()
        assert [(key, at) for key, (_, at) in first.placed.items()] == [
            (key, at) for key, (_, at) in second.placed.items()
        ]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_two_backlogged_tenants_get_their_weights_worth(seed: int, reports: bool) -> None:
    """However long their requests are: what they differ in is bounded and does not grow."""
    rng, fleet = Random(seed), Fleet(1, reports=reports)
    for _ in range(150):
        fleet.submit(
            "small", weight=1.0, prompt=rng.randint(16, 200), output=rng.randint(5, 40), deadline_ms=1e7
        )
        fleet.submit(
            "large", weight=2.0, prompt=rng.randint(200, 900), output=rng.randint(20, 90), deadline_ms=1e7
        )
    gaps = []
    for _ in range(6):
        fleet.advance(1_000)
        served = fleet.service_ms(["small", "large"])
        gaps.append(served["small"] - served["large"] / 2)
    assert fleet.queue.depth(INTERACTIVE) > 0
    # A quantum is a prompt; beyond it, what runs is not taken back, and rows run for up to a second.
    most_ms = 2 * 90 + 16 * 90 * 2.0
    assert max(gaps) - min(gaps) <= most_ms
    assert abs(gaps[-1]) <= most_ms
