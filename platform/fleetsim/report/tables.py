"""HTML tables of what the plots show: for people who cannot see them, and for figures to copy."""

from collections.abc import Sequence

from fleetsim.report.figures import NONE, clock, number, with_unit
from fleetsim.report.lines import Line
from fleetsim.report.markup import Html, tag
from fleetsim.report.result import Percentiles, Result, TenantService, run_itself


def table(
    caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, words: bool = False
) -> Html:
    """The first column names the row; the others are figures, or `words`."""
    head = [tag("th", column, scope="col") for column in columns]
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption, class_="hidden"),
            tag("thead", tag("tr", *head)),
            tag("tbody", *body),
            class_="words" if words else None,
        ),
        class_="table-wrap",
        tabindex="0",
        role="region",
        aria_label=caption,
    )


def percentile_table(caption: str, first: str, groups: Sequence[tuple[str, Percentiles]], unit: str) -> Html:
    columns = (first, "Values", "p50", "p95", "p99", "Highest")
    return table(caption, columns, [(name, *_percentile_cells(group, unit)) for name, group in groups])


def _percentile_cells(group: Percentiles, unit: str) -> tuple[str, ...]:
    if not group.count:
        return ("0", NONE, NONE, NONE, NONE)
    figures = (group.p50, group.p95, group.p99, group.max)
    return (number(group.count), *(with_unit(value, unit) for value in figures))


def line_table(caption: str, lines: Sequence[Line], step_s: float, unit: str) -> Html:
    """What each line comes to: all its values are in the JSON file."""
    rows = []
    for line in lines:
        known = line.known
        if not known:
            continue
        highest = max(known)
        rows.append(
            (
                line.name,
                with_unit(min(known), unit),
                with_unit(sum(known) / len(known), unit),
                with_unit(highest, unit),
                clock(line.values.index(highest) * step_s),
                with_unit(known[-1], unit),
            )
        )
    return table(caption, ("Line", "Lowest", "Mean", "Highest", "At", "In the end"), rows)


def tenant_table(tenants: Sequence[TenantService]) -> Html:
    columns = (
        "Tenant",
        "Weight",
        "Requests",
        "Served",
        "Refused",
        "Output tokens",
        "Machine time",
        "First token p50",
        "p95",
    )
    rows = [
        (
            f"{tenant.tenant} · noise" if tenant.noisy else tenant.tenant,
            number(tenant.weight),
            number(tenant.arrived),
            number(tenant.served),
            number(tenant.refused),
            number(tenant.output_tokens),
            with_unit(tenant.machine_share, "share"),
            *_percentile_cells(tenant.ttft_ms, "ms")[1:3],
        )
        for tenant in tenants
    ]
    return table("Service by tenant", columns, rows)


def variant_table(result: Result) -> Html:
    """The run itself first."""
    columns = (
        "Variant",
        "Served",
        "First token p50",
        "p95",
        "p99",
        "Added p95",
        "Highest",
        "Inter-token p95",
        "Tokens a second",
        "Utilisation",
        "A million",
        "Cached",
    )
    rows = []
    for variant in (run_itself(result), *result.variants):
        first = _percentile_cells(variant.ttft_ms, "ms")
        added = _percentile_cells(variant.added_ttft_ms, "ms")
        rows.append(
            (
                variant.name,
                f"{number(variant.served)} of {number(variant.arrived)}",
                *first[1:4],
                *(added[2], added[4]),
                _percentile_cells(variant.itl_ms, "ms")[2],
                number(variant.output_tokens_per_s),
                with_unit(variant.utilisation, "share"),
                with_unit(variant.usd_per_million, "USD"),
                with_unit(variant.cached_share, "share"),
            )
        )
    return table("Variants", columns, rows)
