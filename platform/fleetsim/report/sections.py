"""The page's sections of plots, each with its figures as a table. What has nothing to show is left out."""

from collections.abc import Sequence

from fleetsim.report.bar_plot import Share, percentile_bars, share_bars
from fleetsim.report.figures import clock, number, span, with_unit
from fleetsim.report.line_plot import legend, line_plot
from fleetsim.report.lines import Line, axis_top, bundled
from fleetsim.report.markup import Html, joined, tag
from fleetsim.report.result import LevelChange, Percentiles, Plot, PromptBand, Result, TenantService
from fleetsim.report.tables import line_table, percentile_table, table, tenant_table, variant_table
from fleetsim.report.words import words_of

TENANTS = 20  # shown; all are in the JSON file
LEVEL_STEPS = 400
HIGHEST_LEVEL = 5


def latency(result: Result) -> Html | None:
    first = [(_band_name(band), band.ttft_ms) for band in result.bands]
    between = [(_band_name(band), band.itl_ms) for band in result.bands]
    return _section(
        "Latency",
        _percentile_figure(
            "First token by prompt",
            "From arrival to the first token, by prompt tokens. In figures: p95.",
            first,
        ),
        _percentile_figure(
            "Between tokens by prompt",
            "From one token to the next, by prompt tokens. In figures: p95.",
            between,
        ),
        *_line_figures(result, ("ttft_ms",), before=2 if result.bands else 0),
    )


def load(result: Result) -> Html | None:
    return _section("Load", *_line_figures(result, ("arrivals_per_s", "queue_depth")))


def fairness(result: Result) -> Html | None:
    tenants = sorted(result.tenants, key=lambda tenant: -tenant.machine_share)
    return _section(
        "Fairness",
        _share_figure(tenants),
        *_line_figures(result, ("tenant_tokens_per_s",), before=1),
        _wide_card("Tenants", _left_out(len(tenants)), tenant_table(tenants[:TENANTS])) if tenants else None,
    )


def fleet(result: Result) -> Html | None:
    known = ("tokens_per_s", "utilisation", "usd_per_million", "replicas")
    placed = {"ttft_ms", "arrivals_per_s", "queue_depth", "tenant_tokens_per_s", *known}
    others = [plot.id for plot in result.plots if plot.id not in placed]
    return _section("Fleet", *_line_figures(result, (*known, *others)))


def degradation(result: Result) -> Html | None:
    if not result.levels:
        return None
    step_s = result.simulated_s / LEVEL_STEPS
    lines = (Line("Level", levels_over_time(result.levels, step_s)),)
    name, lead = "Degradation", "The level that requests were admitted at: 0 is none, 5 the last."
    rows = [
        (clock(change.at_s), f"L{change.before} → L{change.after}", change.reason) for change in result.levels
    ]
    plot = line_plot(name, lines, step_s, "", stepped=True, top=HIGHEST_LEVEL)
    return _section(
        name,
        _card("Level over time", lead, plot, None),
        _card(
            "Level changes",
            f"{len(rows)} in all.",
            table("Level changes", ("At", "Level", "Why"), rows, words=True),
            None,
        ),
    )


def variants(result: Result) -> Html | None:
    if not result.variants:
        return None
    lead = "The scenario as it is, and with something changed."
    return _section("Variants", _wide_card("Beside this run", lead, variant_table(result)))


def levels_over_time(changes: Sequence[LevelChange], step_s: float) -> list[float]:
    """The highest level of every step."""
    levels = []
    current, rest = changes[0].before, list(reversed(changes))
    for step in range(LEVEL_STEPS):
        highest = current
        while rest and rest[-1].at_s < (step + 1) * step_s:
            current = rest.pop().after
            highest = max(highest, current)
        levels.append(float(highest))
    return levels


def _section(name: str, *cards: Html | None) -> Html | None:
    shown = [card for card in cards if card is not None]
    return tag("section", tag("h2", name), tag("div", *shown, class_="cards")) if shown else None


def _card(
    name: str, lead: str, content: Html, figures: Html | None, key: Html | None = None, *, wide: bool = False
) -> Html:
    return tag(
        "figure",
        tag("figcaption", tag("h3", name), tag("p", lead) if lead else None),
        key,
        content,
        tag("details", tag("summary", "Figures"), figures) if figures else None,
        class_="card wide" if wide else "card",
    )


def _wide_card(name: str, lead: str, content: Html) -> Html:
    return tag("div", tag("h3", name), tag("p", lead) if lead else None, content, class_="card wide")


def _line_figures(result: Result, ids: Sequence[str], before: int = 0) -> list[Html]:
    """`before`: cards that the section has already. The last of an odd number is as wide as two."""
    plots = {
        plot.id: plot
        for plot in result.plots
        if any(value is not None for line in plot.lines for value in line.values)
    }
    shown = [plots[id_] for id_ in ids if id_ in plots]
    odd = (before + len(shown)) % 2 == 1
    return [_line_figure(plot, wide=odd and plot is shown[-1]) for plot in shown]


def _line_figure(plot: Plot, *, wide: bool) -> Html:
    words = words_of(plot)
    lines = [Line(line.name, line.values) for line in plot.lines]
    drawing = line_plot(words.name, lines, plot.step_s, plot.unit)
    if wide:  # on a narrow screen its letters would be too small
        across = line_plot(words.name, lines, plot.step_s, plot.unit, wide=True)
        drawing = joined(across, tag("div", drawing, class_="if-narrow"))
    figures = line_table(words.name, lines, plot.step_s, plot.unit)
    _, cut_off = axis_top(bundled(lines))
    lead = words.lead
    if cut_off is not None:
        lead += f" The highest, {with_unit(cut_off, plot.unit)}, is cut off."
    return _card(words.name, lead, drawing, figures, legend(lines) if len(lines) > 1 else None, wide=wide)


def _percentile_figure(name: str, lead: str, groups: Sequence[tuple[str, Percentiles]]) -> Html | None:
    if not groups:
        return None
    key = tag("ul", *(tag("li", _swatch(level), level) for level in ("p50", "p95", "p99")), class_="legend")
    figures = percentile_table(name, "Prompt tokens", groups, "ms")
    return _card(name, lead, percentile_bars(name, groups, "ms"), figures, key)


def _share_figure(tenants: Sequence[TenantService]) -> Html | None:
    if not tenants:
        return None
    weight = sum(tenant.weight for tenant in tenants)
    shares = [
        Share(tenant.tenant, tenant.machine_share, tenant.weight / weight, tenant.noisy)
        for tenant in tenants[:TENANTS]
    ]
    items = [
        tag("li", _swatch("share"), "tenant"),
        tag("li", _swatch("share emphasised"), "noisy tenant"),
        tag("li", _swatch("due"), "its weight's part"),
    ]
    lead = " ".join(filter(None, ("Machine time by tenant.", _left_out(len(tenants)))))
    return _card(
        "Machine time", lead, share_bars("Machine time", shares), None, tag("ul", *items, class_="legend")
    )


def _swatch(kind: str) -> Html:
    mark = (
        tag("line", x1=7.0, x2=7.0, y1=0.0, y2=14.0, class_=kind)
        if kind == "due"
        else tag("rect", width=14.0, height=14.0, rx=3.0, class_=kind)
    )
    return tag("svg", mark, viewBox="0 0 14 14", class_="swatch", aria_hidden="true")


def _left_out(tenants: int) -> str:
    return f"The {TENANTS} with most of {number(tenants)}." if tenants > TENANTS else ""


def _band_name(band: PromptBand) -> str:
    return span(band.least_tokens, band.most_tokens)
