"""Random lives of a fleet against the production dispatcher: nothing lost, doubled or misrouted.

A failing example prints the operations that lead to it.
"""

import random
from collections import Counter, defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.dispatcher import Dispatcher, Limits
from gpuworker.wire.messages import (
    Cancel,
    CancelRow,
    Ended,
    GatewayGone,
    Placed,
    Refused,
    RowKey,
    Run,
    WorkerDown,
)
from tests.dispatch.peers import Inbox, hello, report, submit


class World:
    """Workers that really hold blocks, a gateway that remembers what it was told, and a clock."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 10_000.0
        self.dispatcher = Dispatcher(Limits(queue_depth=20), 0.0)
        self.gateway = Inbox()
        self.dispatcher.gateway_joined(hello("gateway", "g", "g"), self.gateway.send, self.now)
        self.workers: dict[str, tuple[Inbox, str, dict[RowKey, int]]] = {}
        self.incarnations = 0
        self.sids = 0
        self.digest_of: dict[int, str] = {}
        self.reports = 0
        self.endings: dict[int, list[str]] = defaultdict(list)
        self.started: Counter[int] = Counter()
        self.arrivals: dict[str, list[int]] = defaultdict(list)

    def worker_start(self) -> None:
        if len(self.workers) >= 3:
            return
        self.incarnations += 1
        name, digest = f"w{self.incarnations}", self.random.choice(["d1", "d2"])
        inbox = Inbox()
        self.workers[name] = (inbox, digest, {})
        self.dispatcher.worker_joined(
            hello("worker", name, name, digest=digest, blocks=24, max_rows=4, max_tokens=300),
            inbox.send,
            self.now,
        )
        self.report(name)

    def worker_kill(self) -> None:
        if self.workers:
            name = self.random.choice(sorted(self.workers))
            inbox, _, rows = self.workers.pop(name)
            unread = [run.submit.sid for run in inbox.of(Run)]
            for sid in [*unread, *(row.sid for row in rows)]:
                self.endings[sid].append("lost")
            self.dispatcher.worker_lost(name, "killed", self.now)
            assert any(d.incarnation == name for d in self.gateway.of(WorkerDown))

    def submit(self) -> None:
        self.sids += 1
        digest = self.random.choice(["d1", "d2"])
        self.digest_of[self.sids] = digest
        prompt, klass = self.random.randint(1, 320), self.random.choice(["interactive", "batch"])
        self.dispatcher.submit("g", submit(self.sids, prompt=prompt, digest=digest, klass=klass), self.now)

    def cancel(self) -> None:
        if self.sids:
            self.dispatcher.cancel("g", Cancel(sid=self.random.randint(1, self.sids)), self.now)

    def pass_time(self) -> None:
        self.now += self.random.choice([10, 200, 700])
        self.dispatcher.gateway_heard("g", self.now)
        for name in sorted(self.workers):
            self.report(name)
        self.dispatcher.tick(self.now)

    def report(self, name: str) -> None:
        """The worker acts on what it was sent, some rows end, and it says so."""
        inbox, digest, rows = self.workers[name]
        ended: list[RowKey] = []
        messages, inbox.messages = inbox.messages, []
        for message in messages:
            match message:
                case Run(submit=s):
                    row = RowKey("g", s.sid)
                    assert s.digest == digest, "wrong weights"
                    assert row not in rows
                    if self.random.random() < 0.1:
                        self.dispatcher.refused(name, Refused(row=row, code="capacity", message=""), self.now)
                        continue
                    rows[row] = -(-(len(s.prompt) // 4 + 1) // 16)
                    self.started[s.sid] += 1
                case CancelRow(row=row) if row in rows:
                    ended.append(row)
        ended += [row for row in rows if row not in ended and self.random.random() < 0.3]
        for row in ended:
            if row in rows:
                del rows[row]
                self.endings[row.sid].append("worker")
        assert sum(rows.values()) <= 24, "more KV placed than the worker has"
        self.reports += 1
        self.dispatcher.report(
            name,
            report(self.reports, free_blocks=24 - sum(rows.values()), prefilled=list(rows), ended=ended),
            self.now,
        )

    def finish(self) -> None:
        """Heal: a worker of each kind, time enough for everything."""
        for digest in ("d1", "d2"):
            self.incarnations += 1
            name = f"w{self.incarnations}"
            inbox = Inbox()
            self.workers[name] = (inbox, digest, {})
            greeting = hello("worker", name, name, digest=digest, blocks=24, max_rows=4, max_tokens=300)
            self.dispatcher.worker_joined(greeting, inbox.send, self.now)
        for _ in range(400):
            self.pass_time()


OPERATIONS = ["submit", "submit", "submit", "cancel", "pass_time", "worker_start", "worker_kill"]


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), operations=st.lists(st.sampled_from(OPERATIONS), max_size=80))
def test_every_request_ends_exactly_once_on_the_right_weights(seed: int, operations: list[str]) -> None:
    world = World(seed)
    for operation in operations:
        getattr(world, operation)()
    world.finish()

    for ended in world.gateway.of(Ended):
        world.endings[ended.sid].append("dispatcher")
    assert {sid: len(how) for sid, how in world.endings.items() if len(how) != 1} == {}
    assert set(world.endings) == set(world.digest_of)
    assert all(count == 1 for count in world.started.values())
    state = world.dispatcher.fleet_state(world.now, 0)
    assert [q.depth for q in state.queues if q.depth] == []
    assert [g.streams for g in state.gateways] == [0]
    assert {p.sid for p in world.gateway.of(Placed)} >= set(world.started)
    assert not any(inbox.of(GatewayGone) for inbox, _, _ in world.workers.values())
