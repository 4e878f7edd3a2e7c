"""The lines of a result over simulated time."""

from collections import Counter

from fleetsim.recorder import Slice
from fleetsim.report.result import Plot, Series, percentiles
from fleetsim.simulation import Simulation

TENANT_LINES = 6  # tenants with most machine time


def plots_of(simulation: Simulation) -> tuple[Plot, ...]:
    recorder = simulation.recorder
    step_s = recorder.slice_us / 1e6
    slices = recorder.slices[: round(simulation.scenario.file.duration_s / step_s)]
    model = next(iter(simulation.fleet.members.values())).replica.model

    def plot(name: str, unit: str, **lines: list[float] | list[float | None]) -> Plot:
        series = tuple(Series(line.replace("_", " "), tuple(values)) for line, values in lines.items())
        return Plot(name, unit, step_s, series)

    first = [percentiles([us / 1000 for us in part.first_us]) for part in slices]
    tokens = [part.output_tokens / step_s for part in slices]
    ready = [float(part.ready) for part in slices]
    used = [
        (part.output_tokens / model.output_tokens_per_s + part.prompt_tokens / model.prompt_tokens_per_s)
        / (step_s * max(part.ready, 1))
        for part in slices
    ]
    cost = [
        model.usd_per_hour * up / 3600 / rate * 1e6 if rate else None
        for up, rate in zip(ready, tokens, strict=True)
    ]
    return (
        plot(
            "ttft_ms",
            "ms",
            p50=[p.p50 if p.count else None for p in first],
            p95=[p.p95 if p.count else None for p in first],
        ),
        plot("queue_depth", "requests", waiting=[float(part.depth) for part in slices]),
        plot("arrivals_per_s", "/s", arrivals=[part.arrived / step_s for part in slices]),
        plot(
            "tokens_per_s",
            "tokens/s",
            generated=tokens,
            prefilled=[part.prompt_tokens / step_s for part in slices],
        ),
        plot("utilisation", "share", used=used),
        plot("usd_per_million", "USD", cost=cost),
        plot("replicas", "replicas", ready=ready),
        _service(slices, step_s),
    )


def _service(slices: list[Slice], step_s: float) -> Plot:
    """By tenant, those with most first."""
    total: Counter[str] = Counter()
    for part in slices:
        total.update(part.tenant_tokens)
    most = sorted(total, key=lambda tenant: (-total[tenant], tenant))[:TENANT_LINES]
    lines = tuple(
        Series(tenant, tuple(part.tenant_tokens[tenant] / step_s for part in slices)) for tenant in most
    )
    return Plot("tenant_tokens_per_s", "tokens/s", step_s, lines)
