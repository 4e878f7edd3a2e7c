"""The page's words and single figures: its head, what was promised, the six figures that count, its end."""

from fleetsim.report.figures import NONE, clock, number, with_unit
from fleetsim.report.markup import Html, tag
from fleetsim.report.result import Check, Percentiles, Result
from fleetsim.report.tables import table


def header(result: Result) -> Html:
    facts = (
        ("Scenario", result.scenario),
        ("Replicas", f"{number(result.replicas)} · {result.replica_model} model"),
        ("Simulated", clock(result.simulated_s)),
        ("Took", with_unit(result.wall_s, "s")),
        ("Seed", str(result.seed)),
    )
    return tag(
        "header",
        tag("p", "Sluice · fleet simulator", class_="brand"),
        tag("h1", result.title),
        tag("dl", *(_fact(name, value) for name, value in facts), class_="facts"),
        class_="page-head",
    )


def _fact(name: str, value: str) -> Html:
    return tag("div", tag("dt", name), tag("dd", value))


def promises(result: Result) -> Html | None:
    if not result.checks:
        return None
    broken = sum(not check.holds for check in result.checks)
    count = len(result.checks)
    verdict = f"{count - broken} of {count} promises kept"
    head = (tag("th", name, scope="col") for name in ("Promise", "Found", "Promised", "Verdict"))
    return tag(
        "section",
        tag("h2", _badge("broken" if broken else "kept"), verdict),
        tag(
            "div",
            tag(
                "table",
                tag("caption", "Promises of the scenario", class_="hidden"),
                tag("thead", tag("tr", *head)),
                tag("tbody", *map(_promise, result.checks)),
            ),
            class_="card table-wrap",
            tabindex="0",
            role="region",
            aria_label="Promises of the scenario",
        ),
    )


def _promise(check: Check) -> Html:
    return tag(
        "tr",
        tag("th", check.name, scope="row"),
        tag("td", with_unit(check.value, check.unit)),
        tag("td", f"{check.relation} {with_unit(check.limit, check.unit)}"),
        tag("td", _badge("kept" if check.holds else "broken")),
    )


def _badge(word: str) -> Html:
    return tag("span", word, class_=f"badge {word}")


def tiles(result: Result) -> Html:
    per_replica = result.output_tokens_per_s / result.replicas if result.replicas else 0.0
    shown = (
        ("First token, p95", *_percentile_tile(result.ttft_ms)),
        ("Added to it, p95", *_percentile_tile(result.added_ttft_ms)),
        ("Inter-token, p95", *_percentile_tile(result.itl_ms)),
        ("Output tokens a second", number(result.output_tokens_per_s), f"{number(per_replica)} a replica"),
        ("Utilisation", with_unit(result.utilisation, "share"), "additive machine time"),
        ("A million output tokens", with_unit(result.usd_per_million, "USD"), "at this load"),
    )
    return tag("dl", *(_tile(*tile) for tile in shown), class_="tiles")


def _percentile_tile(found: Percentiles) -> tuple[str, str]:
    if not found.count:
        return NONE, "no values"
    p50, p99 = with_unit(found.p50, "ms"), with_unit(found.p99, "ms")
    return with_unit(found.p95, "ms"), f"p50 {p50} · p99 {p99}"


def _tile(name: str, value: str, note: str) -> Html:
    return tag(
        "div",
        tag("dt", name),
        tag("dd", value, class_="value"),
        tag("dd", note, class_="note"),
        class_="tile",
    )


def requests(result: Result) -> Html:
    counts = result.counts
    rows = (
        ("Requests that came", number(counts.arrived)),
        ("served to the end", number(counts.served)),
        ("refused at once", number(counts.refused)),
        ("expired in the queue, never on a replica", number(counts.expired)),
        ("failed", number(counts.failed)),
        ("unfinished when the simulation ended", number(counts.unfinished)),
        ("Prompt tokens", number(counts.prompt_tokens)),
        (
            "found in a prefix cache",
            f"{number(counts.cached_tokens)} ({with_unit(counts.cached_share, 'share')})",
        ),
        ("Output tokens", number(counts.output_tokens)),
    )
    return tag(
        "section",
        tag("h2", "Requests and tokens"),
        tag("div", table("Requests and tokens", ("Counted", "Number"), rows), class_="card narrow"),
    )


def footer(result: Result) -> Html:
    return tag(
        "footer",
        tag("p", "Again: ", tag("code", f"make sim SCENARIO={result.scenario}")),
        tag("p", "Event log, SHA-256: ", tag("code", result.events_sha256)),
        tag("p", f"Added first-token time is measured over {result.added_over}."),
    )
