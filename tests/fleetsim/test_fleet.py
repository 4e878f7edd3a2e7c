"""A fleet in trouble: overload, a lost zone, quotas, degradation. Every run is checked for lost tokens."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

from fleetsim.facts import facts_of
from fleetsim.laws import LawBroken, laws_check
from fleetsim.report.result import Result
from fleetsim.run import result_of, scenario_run
from fleetsim.scenario import FOLDER, Scenario, scenario_of, scenario_read
from fleetsim.simulation import Simulation, simulate

LENGTHS = {
    "prompts": {"mean": 1000, "cv": 0.8, "least": 16, "most": 8192},
    "answers": {"mean": 309, "cv": 0.8, "least": 8, "most": 2048},
}


def scenario(rate: float, duration_s: float = 40, **parts: Any) -> Scenario:
    stream = {"kind": "stream", "name": "tenant", "rate": rate, "end_s": duration_s, "tenants": 10, **LENGTHS}
    config: dict[str, Any] = {"title": "test", "duration_s": duration_s + 20, "fleet": {"replicas": 3}}
    return scenario_of("test", {**config, "workload": [stream], **parts})


def checked(chosen: Scenario) -> Simulation:
    simulation = simulate(chosen)
    laws_check(simulation)
    return simulation


def shipped(name: str, changes: Mapping[str, Any]) -> Result:
    return scenario_run(scenario_read(FOLDER / f"{name}.toml").changed({"variant": [], **changes}))


def test_below_its_capacity_everybody_is_served() -> None:
    result = result_of(*[checked(scenario(6.0))] * 2)
    assert result.counts.served == result.counts.arrived > 200
    assert result.itl_ms.p95 < 40


def test_more_replicas_are_never_worse() -> None:
    p95 = [scenario_run(scenario(9.0, fleet={"replicas": replicas})).ttft_ms.p95 for replicas in (2, 3, 4, 6)]
    assert all(more <= 1.02 * fewer for fewer, more in pairwise(p95))


def test_a_lost_zone_loses_no_request() -> None:
    # Given 3 zones, one of which is lost
    event = [{"kind": "zone_loss", "at_s": 20.0, "zone": 1}]
    simulation = checked(scenario(9.0, fleet={"replicas": 6, "zones": 3}, event=event))
    # Then its replicas are gone, and what ran there has ended elsewhere
    assert [member.is_up for member in simulation.fleet.members.values()] == [True, False, True] * 2
    requests = simulation.recorder.requests
    assert {request.outcome for request in requests} == {"served"}
    moved = [request for request in requests if request.first_us < request.placed_us]
    assert moved
    assert all(request.replica[-1] not in "14" for request in moved)
    # after a pause, which is one of its gaps
    assert 100 < simulation.recorder.gaps["others"].percentiles().max < 10_000


def test_warm_replicas_come_when_requests_wait_too_long() -> None:
    load = {"rate": 25.0, "duration_s": 60}
    alone = checked(scenario(**load))
    helped = checked(scenario(**load, fleet={"replicas": 3, "warm": 3, "warm_s": 5.0}))
    assert helped.fleet.levels
    assert len(helped.fleet.ready) == 6
    served = [sum(r.outcome == "served" for r in sim.recorder.requests) for sim in (alone, helped)]
    assert served[1] > 1.15 * served[0]


def test_under_pressure_tenants_get_what_they_accepted() -> None:
    # Given an overload that lasts, and tenants of whom a part accepts the smaller model or a batch job
    clients = {"accepts_smaller_model": 0.4, "accepts_batch": 0.4, "tries": 1}
    fleet = {"replicas": 2, "smaller": 1}
    simulation = checked(scenario(40.0, 150, fleet=fleet, clients=clients, queue={"settings": {}}))
    degraded = simulation.fleet.door.degraded
    levels = [change.after for change in simulation.fleet.levels]
    # Then requests are degraded only by levels that were entered
    assert levels
    assert (degraded.shorter > 0) == (max(levels) >= 3)
    assert (degraded.smaller > 0) == (max(levels) >= 4)
    assert (degraded.jobs > 0) == (max(levels) >= 5)


def test_a_quota_holds_and_its_refusals_are_honest() -> None:
    quota = 12_000
    simulation = checked(scenario(9.0, 80, quota_tokens_per_minute=quota, clients={"tries": 2}))
    door = simulation.fleet.door
    assert door.degraded.over_quota > 20
    # Then no tenant got more than a full bucket and what flowed into it
    for tenant in {request.arrival.tenant for request in simulation.recorder.requests}:
        used = sum(
            request.arrival.prompt_tokens + request.output_tokens
            for request in simulation.recorder.requests
            if request.arrival.tenant == tenant and request.first_us
        )
        # An answer may be longer than was expected of it: the bucket is in debt then.
        assert used <= quota * (1 + 100 / 60) + 20 * 2048
    assert simulation.clients.retries.first > 10


def test_lost_tokens_would_be_noticed() -> None:
    simulation = simulate(scenario(4.0, 10))
    laws_check(simulation)
    simulation.recorder.requests[0].outcome = ""
    with pytest.raises(LawBroken, match="tokens"):
        laws_check(simulation)


def test_lost_time_would_be_noticed() -> None:
    simulation = simulate(scenario(4.0, 10))
    simulation.recorder.live_us = round(1.05 * simulation.recorder.live_us)
    with pytest.raises(LawBroken, match="in the system"):
        laws_check(simulation)


def test_at_twice_the_load_nothing_starts_late_and_who_obeys_gets_in() -> None:
    """All five minutes of it."""
    overload = scenario_read(FOLDER / "overload-2x.toml")
    simulation = simulate(overload)
    laws_check(simulation)
    facts = facts_of(simulation, simulation, 285.0)
    assert facts["starts_after_deadline"] == 0
    assert facts["first_retries"] > 500
    assert facts["first_retries_admitted"] >= 0.9
    # The capacity is what a queue without deadlines gets out of the same fleet, of a part of it
    part = {"duration_s": 220, "measure_to_s": 220, "queue.policy": "fifo"}
    unbounded = simulate(overload.changed(part)).recorder
    assert facts["goodput_tokens_per_s"] >= 0.95 * sum(unbounded.output_tokens.values()) / 145


@pytest.mark.parametrize("obeying", [0.3, 1.0])
def test_whoever_is_told_to_come_back_gets_in_then_however_many_do(obeying: float) -> None:
    """A hundred seconds of twice the load, and time for everybody to come back."""
    short = {"duration_s": 190, "workload.0.end_s": 10, "workload.1.start_s": 10, "workload.1.end_s": 110}
    measured = {"measure_from_s": 10, "measure_to_s": 110}
    overload = scenario_read(FOLDER / "overload-2x.toml")
    simulation = simulate(overload.changed({**short, **measured, "clients.obeying": obeying}))
    facts = facts_of(simulation, simulation, 100.0)
    assert facts["starts_after_deadline"] == 0
    assert facts["first_retries"] > 100
    assert facts["first_retries_admitted"] >= 0.9
    # and not everybody is told: there is no place for all
    refused = [request for request in simulation.recorder.requests if request.outcome == "refused"]
    assert sum(request.tries == 1 for request in refused) > 100


SHORT = {"duration_s": 400, "workload.0.end_s": 400, "workload.2.end_s": 400}


@pytest.mark.parametrize("changes", [SHORT, pytest.param({}, marks=pytest.mark.slow)])
def test_batch_keeps_its_part_under_saturation(changes: Mapping[str, Any]) -> None:
    """Five minutes; half an hour among the slow ones."""
    result = shipped("batch-saturation", changes)
    assert [check for check in result.checks if not check.holds] == []
