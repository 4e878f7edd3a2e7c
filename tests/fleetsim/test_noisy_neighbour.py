"""One customer submits ten thousand long generations: what others notice of it, and that the test can fail.

The simulator runs the production queue and the engine's rules of a step. Added first-token time is per
request, against the same arrivals without the noise.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from fleetsim.report.result import Result
from fleetsim.run import result_of
from fleetsim.scenario import FOLDER, Scenario, scenario_read
from fleetsim.simulation import Simulation, simulate

SEEDS = (7, 8)
KEYS = {"workload.1.tenants": [{"name": "noisy", "keys": 1000}]}
WEIGHTED = {"workload.1.tenants": [{"name": "noisy-1"}, {"name": "noisy-3", "weight": 3}]}
# A prompt of 8k takes 0.8 s of a replica's time, its 2,000 tokens last 80 s: so this runs for longer, and its
# rate is that of the last minute.
LONG_PROMPTS = {"workload.1.prompts": 8000, "duration_s": 125, "workload.0.end_s": 122}


def scenario(seed: int, changes: Mapping[str, Any]) -> Scenario:
    return scenario_read(FOLDER / "noisy-neighbour.toml").changed({"seed": seed, **changes})


@cache
def quiet(seed: int, policy: str = "production", duration_s: int = 80) -> Simulation:
    changes = {"queue.policy": policy, "duration_s": duration_s, "workload.0.end_s": duration_s - 3}
    return simulate(scenario(seed, changes), quiet=True)


def noisy(seed: int, **changes: Any) -> Result:
    simulation = simulate(scenario(seed, changes))
    policy, duration_s = changes.get("queue.policy", "production"), changes.get("duration_s", 80)
    return result_of(simulation, quiet(seed, policy, duration_s))


def broken(result: Result) -> list[str]:
    """Promises that do not hold."""
    return [f"{check.name}: {check.value:.0f}" for check in result.checks if not check.holds]


@pytest.mark.parametrize("seed", SEEDS)
def test_others_first_tokens_come_as_promised(seed: int) -> None:
    assert broken(noisy(seed)) == []


def test_the_same_seed_gives_the_same_history_and_another_seed_another() -> None:
    histories = [simulate(scenario(seed, {"duration_s": 30})).log.sha256 for seed in (7, 7, 8)]
    assert histories[0] == histories[1] != histories[2]


def test_a_thousand_keys_of_one_tenant_are_one_tenant() -> None:
    by_keys, by_tenant = noisy(7, **KEYS), noisy(7)
    assert broken(by_keys) == []
    assert by_keys.added_ttft_ms.p95 == pytest.approx(by_tenant.added_ttft_ms.p95, rel=0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_long_prompts_do_no_more_harm_and_get_their_part(seed: int) -> None:
    result = noisy(seed, **LONG_PROMPTS)
    assert [promise for promise in broken(result) if not promise.startswith("noisy output")] == []
    service = next(plot for plot in result.plots if plot.id == "tenant_tokens_per_s")
    rates = next(line.values for line in service.lines if line.name == "noisy")
    minute = rates[-round(60 / service.step_s) :]
    assert sum(rate or 0.0 for rate in minute) / len(minute) / result.replicas >= 250


def test_two_noisy_tenants_are_served_by_their_weights() -> None:
    # Given 10,000 of both together, of weights 1 and 3
    result = noisy(7, **WEIGHTED)
    assert broken(result) == []
    # Then over 60 seconds their output stands 1 to 3
    tokens = {tenant.tenant: tenant.output_tokens for tenant in result.tenants if tenant.noisy}
    assert tokens["noisy-3"] / tokens["noisy-1"] == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize("policy", ["fifo", "vtc"])
def test_what_others_do_does_not_keep_the_promise(policy: str) -> None:
    result = noisy(7, **{"queue.policy": policy})
    assert broken(result)
    values = {check.name: check.value for check in result.checks}
    assert values["others not served"] > 500 or values["added first token, p95"] > 1_000
