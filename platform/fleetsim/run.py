"""Runs a scenario, its quiet twin and its variants, and says what was found."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from fleetsim.facts import counted, facts_of, value_at, work_by_tenant
from fleetsim.laws import laws_check
from fleetsim.plots import plots_of
from fleetsim.report.result import (
    Check,
    Counts,
    LevelChange,
    Percentiles,
    PromptBand,
    Result,
    TenantService,
    Variant,
    percentiles,
)
from fleetsim.request import EXPIRED, FAILED, REFUSED, SERVED, Request
from fleetsim.scenario import CheckPart, Scenario, ScenarioError
from fleetsim.simulation import Simulation, simulate

BANDS = (0, 256, 512, 1024, 2048, 4096, 1_000_000)
TENANTS = 64  # in a result, those with most machine time first
RELATIONS: Mapping[str, Callable[[float, float], bool]] = {
    "≤": lambda value, limit: value <= limit,
    "≥": lambda value, limit: value >= limit,
    "<": lambda value, limit: value < limit,
    ">": lambda value, limit: value > limit,
    "=": lambda value, limit: value == limit,
}
Progress = Callable[[str, float], None]  # what runs, and which part of it is over


def scenario_run(scenario: Scenario, progress: Progress | None = None) -> Result:
    """Raises ScenarioError, WorkloadError, LawBroken."""
    begun = time.perf_counter()
    result = _found(scenario, "run", progress)
    variants = []
    for part in scenario.file.variant:
        changed = replace(scenario.changed(part.set), name=scenario.name)
        found = _found(changed, part.name, progress)
        variants.append(
            Variant(
                name=part.name,
                served=found.counts.served,
                arrived=found.counts.arrived,
                ttft_ms=found.ttft_ms,
                added_ttft_ms=found.added_ttft_ms,
                itl_ms=found.itl_ms,
                output_tokens_per_s=found.output_tokens_per_s,
                utilisation=found.utilisation,
                usd_per_million=found.usd_per_million,
                cached_share=found.counts.cached_share,
            )
        )
    return replace(result, variants=tuple(variants), wall_s=time.perf_counter() - begun)


def _found(scenario: Scenario, name: str, progress: Progress | None) -> Result:
    def told(part: float) -> None:
        if progress:
            progress(name, part)

    simulation = simulate(scenario, progress=told)
    quiet = simulate(scenario, quiet=True) if scenario.is_disturbed else simulation
    return result_of(simulation, quiet)


def result_of(simulation: Simulation, quiet: Simulation) -> Result:
    """What a run shows beside its quiet twin. Raises LawBroken, and ScenarioError for a check of nothing."""
    laws_check(simulation)
    scenario = simulation.scenario
    result = _result(simulation, quiet)
    facts = facts_of(simulation, quiet, _seconds(scenario))
    return replace(result, checks=tuple(_check(part, result, facts) for part in scenario.file.check))


def _check(part: CheckPart, result: Result, facts: Mapping[str, float]) -> Check:
    try:
        value = value_at(part.value, result, facts)
    except KeyError as error:
        raise ScenarioError(f"check {part.name!r}: there is no value {part.value!r}") from error
    holds = RELATIONS[part.relation](value, part.limit)
    return Check(part.name, value, part.relation, part.limit, part.unit, holds)


def _seconds(scenario: Scenario) -> float:
    begin_us, end_us = scenario.measured_us
    return (end_us - begin_us) / 1e6


def _result(simulation: Simulation, quiet: Simulation) -> Result:
    scenario, recorder = simulation.scenario, simulation.recorder
    file = scenario.file
    seconds = _seconds(scenario)
    others = counted(simulation)
    tokens = sum(recorder.output_tokens.values())
    model = next(iter(simulation.fleet.members.values())).replica.model
    ready_s = recorder.ready_us / 1e6
    used_s = tokens / model.output_tokens_per_s + recorder.computed_tokens / model.prompt_tokens_per_s
    return Result(
        scenario=scenario.name,
        title=file.title,
        seed=file.seed,
        replica_model=model.name,
        replicas=file.fleet.replicas,
        simulated_s=file.duration_s,
        wall_s=0.0,
        ttft_ms=percentiles([request.ttft_us / 1000 for request in others if request.first_us]),
        itl_ms=recorder.gaps["others"].percentiles(),
        added_ttft_ms=_added(simulation, quiet),
        added_over="the same arrivals without noise and failures" if scenario.is_disturbed else "nothing",
        output_tokens_per_s=tokens / seconds,
        utilisation=used_s / ready_s,
        usd_per_million=model.usd_per_hour * ready_s / 3600 / max(tokens, 1) * 1e6,
        events_sha256=simulation.log.sha256,
        counts=_counts(simulation),
        bands=_bands(others),
        tenants=_tenants(simulation),
        plots=plots_of(simulation),
        levels=tuple(
            LevelChange(c.at_ms / 1000, c.before, c.after, f"expected wait {c.wait_ms:.0f} ms")
            for c in simulation.fleet.levels
        ),
    )


def _added(simulation: Simulation, quiet: Simulation) -> Percentiles:
    """Of requests that got a first token in both runs."""
    quiet_us = {request.index: request.ttft_us for request in counted(quiet) if request.first_us}
    return percentiles(
        [
            (request.ttft_us - quiet_us[request.index]) / 1000
            for request in counted(simulation)
            if request.first_us and request.index in quiet_us
        ]
    )


def _counts(simulation: Simulation) -> Counts:
    recorder = simulation.recorder
    by_outcome = {SERVED: 0, REFUSED: 0, EXPIRED: 0, FAILED: 0, "": 0}
    for request in recorder.requests:
        by_outcome[request.outcome] += 1
    return Counts(
        arrived=len(recorder.requests),
        served=by_outcome[SERVED],
        refused=by_outcome[REFUSED],
        expired=by_outcome[EXPIRED],
        failed=by_outcome[FAILED],
        unfinished=by_outcome[""],
        prompt_tokens=recorder.prompt_tokens,
        cached_tokens=recorder.cached_tokens,
        output_tokens=sum(recorder.output_tokens.values()),
    )


def _bands(requests: Sequence[Request]) -> tuple[PromptBand, ...]:
    """Inter-token latencies of a band are means of requests: a step does not know its rows' prompts."""
    bands = []
    for least, beyond in pairwise(BANDS):
        of_band = [r for r in requests if r.first_us and least <= r.arrival.prompt_tokens < beyond]
        if not of_band:
            continue
        means = [
            (r.end_us - r.first_us) / 1000 / (r.output_tokens - 1)
            for r in of_band
            if r.outcome == SERVED and r.output_tokens > 1
        ]
        most = (
            max(request.arrival.prompt_tokens for request in of_band) if beyond == BANDS[-1] else beyond - 1
        )
        ttft_ms = percentiles([request.ttft_us / 1000 for request in of_band])
        bands.append(PromptBand(least, most, ttft_ms, percentiles(means)))
    return tuple(bands)


def _tenants(simulation: Simulation) -> tuple[TenantService, ...]:
    recorder = simulation.recorder
    work_us = work_by_tenant(recorder)
    all_us = max(sum(work_us.values()), 1)
    requests: dict[str, list[Request]] = {}
    for request in recorder.requests:
        requests.setdefault(request.arrival.tenant, []).append(request)
    first = sorted(requests, key=lambda tenant: (-work_us[tenant], tenant))[:TENANTS]
    return tuple(
        TenantService(
            tenant=tenant,
            weight=requests[tenant][0].arrival.weight,
            noisy=tenant in recorder.noisy,
            arrived=len(requests[tenant]),
            served=sum(request.outcome == SERVED for request in requests[tenant]),
            refused=sum(request.outcome == REFUSED for request in requests[tenant]),
            output_tokens=recorder.tenant_tokens[tenant],
            machine_share=work_us[tenant] / all_us,
            ttft_ms=percentiles([r.ttft_us / 1000 for r in requests[tenant] if r.first_us]),
        )
        for tenant in first
    )
