"""What a simulation found as JSON, as a table, as a page: nothing is lost, nothing runs, all can read it."""

import json
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from io import StringIO
from math import ceil

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from fleetsim.report.figures import axis_labels, clock, number, ticks, time_ticks, with_unit
from fleetsim.report.line_plot import line_plot
from fleetsim.report.lines import LINES, Line, axis_top, bundled
from fleetsim.report.markup import Html, joined, tag
from fleetsim.report.page import page_of
from fleetsim.report.result import Percentiles, Plot, Series, percentiles, result_read, result_write
from fleetsim.report.sections import levels_over_time
from fleetsim.report.terminal import print_result
from tests.fleetsim.results import sample_result

EMPTY = replace(
    sample_result(),
    ttft_ms=percentiles([]),
    itl_ms=percentiles([]),
    added_ttft_ms=percentiles([]),
    bands=(),
    tenants=(),
    plots=(),
    levels=(),
    checks=(),
    variants=(),
)


# Percentiles and the file


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_a_percentile_is_the_smallest_value_that_enough_are_not_above(values):
    found = percentiles(values)
    for part, value in ((50, found.p50), (95, found.p95), (99, found.p99), (100, found.max)):
        assert sum(other <= value for other in values) >= ceil(part * len(values) / 100)
        assert sum(other < value for other in values) < ceil(part * len(values) / 100)
    assert found.count == len(values)


def test_percentiles_of_nothing_say_so():
    assert percentiles([]) == Percentiles(0, 0.0, 0.0, 0.0, 0.0)


def test_a_result_is_written_and_read_without_a_loss(tmp_path):
    result_write(sample_result(), tmp_path / "a.json")
    assert result_read(tmp_path / "a.json") == sample_result()
    result_write(sample_result(), tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_the_file_has_the_names_that_others_read(tmp_path):
    result_write(sample_result(), tmp_path / "a.json")
    found = json.loads((tmp_path / "a.json").read_text())
    for name in ("ttft_ms", "itl_ms", "added_ttft_ms"):
        assert {"p50", "p95", "p99", "max"} <= set(found[name])
    assert {"output_tokens_per_s", "utilisation", "usd_per_million", "events_sha256"} <= set(found)


@pytest.mark.parametrize("text", ["", "{}", '{"scenario": 7}', "[]"])
def test_a_file_that_is_no_result_is_refused(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match="is no result of a simulation"):
        result_read(tmp_path / "a.json")


# Figures and scales


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.0421, "0.042"),
        (4.287, "4.29"),
        (42, "42"),
        (42.94, "42.9"),
        (429.4, "429"),
        (84210.3, "84,210"),
    ],
)
def test_numbers_show_three_digits_that_matter(value, shown):
    assert number(value) == shown


def test_units_as_people_write_them():
    shown = [
        with_unit(*figure)
        for figure in ((0.876, "share"), (4.2, "USD"), (91, "ms"), (15_447, "ms"), (7, "tokens/s"))
    ]
    assert shown == ["87.6 %", "$4.20", "91 ms", "15.4 s", "7 tokens/s"]
    assert [clock(at_s) for at_s in (0, 45, 7.5, 90, 7200)] == ["0 s", "45 s", "7.5 s", "1:30", "2:00:00"]
    assert number(float("nan")) == number(float("inf")) == "\N{EN DASH}"


@given(highest=st.floats(1e-6, 1e12), most=st.integers(2, 8))
def test_an_axis_reaches_the_highest_value_in_a_few_equal_steps(highest, most):
    scale = ticks(highest, most)
    assert scale[0] == 0
    assert scale[-1] >= highest * (1 - 1e-9)
    assert 2 <= len(scale) <= most + 1
    assert scale[-2] < highest
    assert all(len(label) <= 9 for label in axis_labels(scale, "") if highest < 1e9)


@given(end_s=st.floats(1, 40 * 86_400))
def test_a_time_axis_stays_within_the_simulation(end_s):
    marks = time_ticks(end_s)
    assert marks[0] == 0
    assert marks[-1] <= end_s * (1 + 1e-6)
    assert len(marks) <= 8


# Markup and plots


def test_text_and_attributes_are_escaped_and_markup_is_not():
    evil = '<script>alert("1")</script>&'
    assert tag("p", evil) == '<p>&lt;script&gt;alert("1")&lt;/script&gt;&amp;</p>'
    assert tag("p", title=evil) == '<p title="&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;"></p>'
    assert (
        tag("g", tag("line", x1=1.0, stroke_width=2.5, class_=None))
        == '<g><line x1="1" stroke-width="2.5"></line></g>'
    )
    assert joined(Html("<b>"), None, "<") == "<b>&lt;"


@settings(max_examples=40)
@given(values=st.lists(st.lists(st.floats(0, 1e9), min_size=0, max_size=400), min_size=1, max_size=9))
@example(values=[[5e-324]])
def test_lines_stay_inside_their_plot(values):
    lines = [Line(f"line {index}", line) for index, line in enumerate(values)]
    drawing = line_plot("t", lines, 0.5, "ms")
    for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", drawing):
        assert 0 <= float(x) <= 560
        assert 0 <= float(y) <= 220
    assert drawing.count("<path") == min(len(lines), LINES)


def test_many_lines_are_the_largest_and_the_sum_of_the_others():
    lines = [Line(f"{size}", [float(size)] * 3) for size in range(1, 11)]
    shown = bundled(lines)
    assert [line.name for line in shown] == ["6", "7", "8", "9", "10", "5 others together"]
    assert list(shown[-1].values) == [15.0] * 3
    assert sum(sum(line.known) for line in shown) == sum(sum(line.known) for line in lines)


def test_a_line_is_broken_where_there_was_nothing_to_measure():
    drawing = line_plot("t", [Line("a", [1.0, 2.0, None, 3.0, None])], 1.0, "ms")
    (path,) = re.findall(r'<path d="([^"]*)" class="line', drawing)
    assert [len(part.split("L")) for part in path.split("M")[1:]] == [2, 1]


def test_what_towers_above_everything_is_cut_off_and_said():
    burst = Line("arrivals", [20.0] * 50 + [26_720.0] + [20.0] * 50)
    assert axis_top([burst]) == (30.0, 26_720.0)
    assert axis_top([Line("a", [1.0, 2.0, 3.0]), Line("b", [500.0, 400.0, 300.0])]) == (500.0, None)
    assert axis_top([Line("a", [None, None])]) == (0.0, None)
    plot = Plot("arrivals_per_s", "requests/s", 1.0, (Series(burst.name, tuple(burst.values)),))
    assert "The highest, 26,720 requests/s, is cut off." in page_of(replace(sample_result(), plots=(plot,)))


def test_a_level_is_seen_however_short_it_was():
    changes = sample_result().levels
    levels = levels_over_time(changes, 0.3)
    assert [levels[round(at_s / 0.3)] for at_s in (0, 20, 22, 60, 119)] == [0, 0, 1, 2, 0]
    brief = [replace(changes[0], at_s=5.01), replace(changes[2], at_s=5.02)]
    assert max(levels_over_time(brief, 1.0)) == 1


# The page and the table


class Outline(HTMLParser):
    """What a page loads, runs and leaves open."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, name, attributes):
        self.tags.append(name)
        self.attributes += attributes
        if name not in ("meta", "link"):
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name


@pytest.mark.parametrize("result", [sample_result(), EMPTY], ids=["full", "empty"])
def test_the_page_is_complete_in_itself(result):
    page = page_of(result)
    outline = Outline(page)
    assert outline.open == []
    assert "script" not in outline.tags
    assert not [name for name, _ in outline.attributes if name in ("style", "src") or name.startswith("on")]
    assert {value for name, value in outline.attributes if name == "href"} == {"data:,"}
    assert "url(" not in page
    assert "@import" not in page
    assert "nan" not in page.lower().replace("tenant", "").split("<body>")[1]


def test_the_page_allows_its_own_style_and_nothing_else():
    page = page_of(sample_result())
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    allowed = b64encode(sha256(style.group(1).encode()).digest()).decode()
    assert f"default-src &#x27;none&#x27;; style-src &#x27;sha256-{allowed}&#x27;" in page


def test_every_plot_has_a_name_and_its_figures_in_a_table():
    page = page_of(sample_result())
    for figure in re.findall(r"<figure.*?</figure>", page, re.DOTALL):
        assert (
            "<table" in figure
            or 'aria-label="Machine time"' in figure
            or 'aria-label="Degradation"' in figure
        )
        assert all("aria-label=" in drawing for drawing in re.findall(r"<svg[^>]*role=[^>]*>", figure))


def test_names_in_a_result_are_text():
    evil = "<img src=x onerror=alert(1)>"
    result = sample_result()
    tenant = replace(result.tenants[0], tenant=evil)
    page = page_of(replace(result, title=evil, scenario=evil, tenants=(tenant,)))
    assert "<img" not in page


def test_a_fleet_of_many_tenants_shows_the_largest():
    page = page_of(sample_result(tenants=500))
    assert "The 20 with most of 500." in page
    assert len(page) < 400_000


@pytest.mark.parametrize("result", [sample_result(), EMPTY], ids=["full", "empty"])
def test_the_terminal_shows_what_was_promised_and_found(result):
    screen = StringIO()
    print_result(result, Console(file=screen, width=140))
    shown = screen.getvalue()
    assert result.events_sha256 in shown
    assert f"{result.counts.served:,}" in shown
    for check in result.checks:
        assert check.name in shown
    assert shown.count("broken") == sum(not check.holds for check in result.checks)
