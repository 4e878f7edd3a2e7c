"""A result as a table for the terminal."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from fleetsim.report.figures import NONE, clock, number, span, with_unit
from fleetsim.report.result import Percentiles, Result, run_itself


def print_result(result: Result, console: Console) -> None:
    """What was promised, the percentiles, the totals, and the variants beside it."""
    console.print(
        f"\n[bold]{result.title}[/] · {result.replicas} replicas ({result.replica_model})"
        f" · {clock(result.simulated_s)} simulated in {with_unit(result.wall_s, 's')} · seed {result.seed}"
    )
    console.print(_latencies(result))
    console.print(_totals(result))
    if result.variants:
        console.print(_variants(result))
    if result.checks:
        console.print(_checks(result))
    console.print(f"events {result.events_sha256}", highlight=False)


def _latencies(result: Result) -> Table:
    table = _table("Milliseconds", "", "values", "p50", "p95", "p99", "max")
    table.add_row("first token", *_cells(result.ttft_ms))
    for band in result.bands:
        table.add_row(f"  prompt {span(band.least_tokens, band.most_tokens)}", *_cells(band.ttft_ms))
    table.add_row("added to it", *_cells(result.added_ttft_ms))
    table.add_row("inter-token", *_cells(result.itl_ms))
    return table


def _totals(result: Result) -> Table:
    counts = result.counts
    table = _table("Totals", "", "")
    rows = (
        ("requests", number(counts.arrived)),
        ("served", number(counts.served)),
        ("refused, expired, failed", f"{counts.refused:,}, {counts.expired:,}, {counts.failed:,}"),
        ("unfinished", number(counts.unfinished)),
        ("output tokens/s", number(result.output_tokens_per_s)),
        ("prefix hits", with_unit(counts.cached_share, "share")),
        ("utilisation", with_unit(result.utilisation, "share")),
        ("per million output tokens", with_unit(result.usd_per_million, "USD")),
        ("level changes", number(len(result.levels))),
    )
    for row in rows:
        table.add_row(*row)
    return table


def _variants(result: Result) -> Table:
    """One column each: eighty letters are enough for the run and a few others."""
    variants = (run_itself(result), *result.variants)
    first = [_cells(variant.ttft_ms) for variant in variants]
    added = [_cells(variant.added_ttft_ms) for variant in variants]
    table = _table("Variants", "", *(variant.name for variant in variants))
    rows: tuple[tuple[str, Iterable[str]], ...] = (
        ("served", (f"{variant.served:,}" for variant in variants)),
        ("of", (f"{variant.arrived:,}" for variant in variants)),
        ("first token p50", (cells[1] for cells in first)),
        ("  p95", (cells[2] for cells in first)),
        ("  max", (cells[4] for cells in first)),
        ("added to it p95", (cells[2] for cells in added)),
        ("  max", (cells[4] for cells in added)),
        ("inter-token p95", (_cells(variant.itl_ms)[2] for variant in variants)),
        ("output tokens/s", (number(variant.output_tokens_per_s) for variant in variants)),
        ("utilisation", (with_unit(variant.utilisation, "share") for variant in variants)),
        ("per million", (with_unit(variant.usd_per_million, "USD") for variant in variants)),
        ("prefix hits", (with_unit(variant.cached_share, "share") for variant in variants)),
    )
    for name, values in rows:
        table.add_row(name, *values)
    return table


def _checks(result: Result) -> Table:
    table = _table("Promises", "", "found", "promised", "")
    for check in result.checks:
        found, promised = with_unit(check.value, check.unit), with_unit(check.limit, check.unit)
        word = "[green]kept[/]" if check.holds else "[bold red]broken[/]"
        table.add_row(check.name, found, f"{check.relation} {promised}", word)
    return table


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _cells(found: Percentiles) -> tuple[str, str, str, str, str]:
    if not found.count:
        return ("0", NONE, NONE, NONE, NONE)
    return (
        number(found.count),
        f"{found.p50:,.1f}",
        f"{found.p95:,.1f}",
        f"{found.p99:,.1f}",
        f"{found.max:,.1f}",
    )
