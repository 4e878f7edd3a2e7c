"""A fleet that many tenants share, on the simulated network: who is served how much, and who waits for whom.

The simulated dispatcher asserts as it goes that nothing begins after its deadline, that the most urgent of a
flow is first, and that a refusal changes nothing (`tests.dispatch.dispatcher_node`).
"""

import itertools
from collections import Counter

import pytest

from dispatch.limits import Limits
from policy.flow import BATCH, INTERACTIVE
from tests.dispatch.gateway_node import Gateway, Stream
from tests.dispatch.peers import submit
from tests.dispatch.simulation import World
from tests.dispatch.worker_node import ROW_LIMIT

NETWORK_MS, LONGEST_STEP_MS = 30.0, 80.0  # a message's way, and a step, at most
LONGEST_ROW_MS = 60 * 80.0 / ROW_LIMIT  # machine time: steps of a row, and what it has of one at most


class Fleet:
    """Two workers of one model and a gateway, and nothing ever breaks."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed, Limits())
        self.world.refusal_rate = self.world.old_worker_rate = 0.0
        for _ in range(2):
            self.world.worker_start("d1", "both")
        self.run(500)
        self.gateway: Gateway = next(iter(self.world.gateways.values()))
        self._sids = itertools.count(1)

    def run(self, ms: float) -> None:
        self.world.clock.run(ms)

    def ask(
        self,
        tenant: str,
        count: int = 1,
        *,
        klass: str = INTERACTIVE,
        weight: float = 1.0,
        deadline_ms: int = 600_000,
    ) -> None:
        for _ in range(count):
            request = submit(
                next(self._sids),
                tenant=tenant,
                prompt=40,
                digest="d1",
                klass=klass,
                weight=weight,
                deadline_ms=deadline_ms,
            )
            assert self.gateway.request(request)

    def served_ms(self) -> Counter[str]:
        """Machine time of each tenant."""
        served: Counter[str] = Counter()
        for worker in self.world.workers.values():
            for (tenant, _), work_us in worker.work_us.items():
                served[tenant] += work_us // 1_000
        return served

    def of(self, tenant: str) -> list[Stream]:
        return [stream for stream in self.gateway.streams.values() if stream.submit.tenant == tenant]

    def waits_ms(self, tenant: str) -> list[float]:
        """Until the gateway heard that it was placed. Every request of the tenant has been; of some it heard
        the worker first."""
        assert all(stream.worker for stream in self.of(tenant)), "somebody still waits"
        return [stream.placed_at - stream.born for stream in self.of(tenant) if stream.placed_at]

    def waiting(self, tenant: str) -> int:
        return sum(not stream.worker and not stream.settled for stream in self.of(tenant))


@pytest.mark.parametrize("seed", range(3))
def test_tenants_with_a_backlog_are_served_by_weight_whoever_came_first(seed: int) -> None:
    fleet = Fleet(seed)
    weights = {"first": 1.0, "second": 1.0, "third": 2.0}
    for tenant, weight in weights.items():
        fleet.ask(tenant, 400, weight=weight)
    fleet.run(10_000)  # who comes to an idle fleet is not made to wait for nobody
    for _ in range(50):
        fleet.run(1_000)
        served_ms = fleet.served_ms()
        parts_ms = [served_ms[tenant] / weight for tenant, weight in weights.items()]
        assert max(parts_ms) - min(parts_ms) <= 2 * LONGEST_ROW_MS
    assert all(fleet.waiting(tenant) for tenant in weights)


@pytest.mark.parametrize("seed", range(3))
def test_a_noisy_tenant_does_not_make_the_others_wait(seed: int) -> None:
    fleet = Fleet(seed)
    fleet.ask("noisy", 400)
    fleet.run(2_000)
    for second in range(30):
        fleet.ask(f"quiet-{second % 5}")
        fleet.run(1_000)
    waits_ms = [wait for number in range(5) for wait in fleet.waits_ms(f"quiet-{number}")]
    assert len(waits_ms) >= 25
    assert max(waits_ms) <= 4 * NETWORK_MS + LONGEST_STEP_MS
    assert fleet.waiting("noisy") > 200, "the noise is over"
    assert fleet.served_ms()["noisy"] > 40_000, "the others leave most of the fleet to it"
    fleet.ask("somebody else", 2)  # one row at least runs for a moment
    fleet.run(200)
    for worker in fleet.world.workers.values():
        assert ("noisy", INTERACTIVE) in worker.over


@pytest.mark.parametrize("seed", range(3))
def test_a_second_tenant_with_a_backlog_does_not_wait_for_the_rows_of_the_first(seed: int) -> None:
    fleet = Fleet(seed)
    for worker in fleet.world.workers.values():
        worker.longest_row = 2_000
    fleet.ask("first", 100)
    fleet.run(2_000)
    fleet.ask("second", 100)
    fleet.run(1_000)
    assert fleet.waiting("second") <= 98, "two of the six rows that decode in time, and the part of a row"


@pytest.mark.parametrize("seed", range(3))
def test_batch_has_its_part_of_a_fleet_that_is_full(seed: int) -> None:
    fleet = Fleet(seed)
    fleet.ask("archive", 400, klass=BATCH, deadline_ms=3_600_000)
    fleet.ask("tenant", 800, deadline_ms=3_600_000)
    fleet.run(10_000)
    before = fleet.served_ms()
    fleet.run(120_000)
    served_ms = fleet.served_ms() - before
    # The simulated worker pauses nobody: a batch row that was due is served until it ends.
    assert 0.095 <= served_ms["archive"] / served_ms.total() <= 0.4
    assert fleet.waiting("tenant")
    assert fleet.waiting("archive")


@pytest.mark.parametrize("seed", range(3))
def test_an_overloaded_fleet_keeps_working_for_requests_that_are_in_time(seed: int) -> None:
    fleet = Fleet(seed)
    before = fleet.served_ms()
    for _ in range(60):
        for number in range(10):
            fleet.ask(f"tenant-{number}", 2, deadline_ms=5_000)
        fleet.run(1_000)
    served_ms = fleet.served_ms() - before
    fleet.run(10_000)
    ends = Counter(stream.settled for stream in fleet.gateway.streams.values())
    assert all(len(stream.final_words) == 1 for stream in fleet.gateway.streams.values())
    assert ends["dispatcher:shed"] + ends["dispatcher:deadline_unmeetable"] > 600
    assert served_ms.total() >= 0.9 * 2 * 60_000
