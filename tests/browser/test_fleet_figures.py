"""What the console says about a fleet state, before any browser."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from console import branding
from console.fleet import EMPTY, NOTHING, FleetPage, fleet_page, natural_key
from console.formats import count_text, duration_text, percent_text, rate_text
from frontend.vendor import RECORD, vendor_differences
from gpuworker.wire.messages import FleetState
from modelsvc.controller.publisher import history_point, state_document
from modelsvc.fleet_contracts import (
    FleetPoint,
    FleetSnapshot,
)
from tests.browser.fleet import AT_MS, fleet, worker

FRONTEND = Path(__file__).resolve().parents[2] / "frontend"


def tiles(state: FleetState) -> dict[str, tuple[str, str, str]]:
    return {tile.key: (tile.value, tile.unit, tile.note) for tile in page_of(state).tiles}


def page_of(state: FleetState) -> FleetPage:
    return fleet_page(published(state), now_ms=AT_MS)


def published(state: FleetState) -> FleetSnapshot:
    return msgspec.json.decode(msgspec.json.encode(state_document(state)), type=FleetSnapshot)


def test_controller_and_console_agree_on_the_published_form() -> None:
    state = fleet([worker(0), worker(1)])
    assert FleetSnapshot.__struct_fields__ == (*FleetState.__struct_fields__, "deployments")
    assert published(state).workers == state.workers
    assert msgspec.convert(history_point(state), FleetPoint).queued == {"interactive": 3, "batch": 21}


def test_headline_figures_sum_over_replicas() -> None:
    state = fleet(
        [worker(0), worker(1, state="suspect", free_blocks=0), worker(2, state="draining", waiting=0)]
    )
    assert tiles(state) == {
        "ready": ("1", "of 3", "1 suspect, 1 draining"),
        "running": ("36", "", "2 waiting on replicas"),
        "queued": ("24", "", "oldest 1 min 14 s"),
        "rate": ("445", "per second", "148 per replica"),
        "kv": ("67 %", "", "2,048 of 3,072 blocks"),
    }


def test_a_fleet_without_replicas_has_figures_too() -> None:
    page = fleet_page(EMPTY, now_ms=0)
    assert [tile.value for tile in page.tiles] == ["0", "0", "0", "0", NOTHING]
    assert page.tiles[0].note == "none connected"


def test_replicas_are_in_the_order_people_count() -> None:
    page = fleet_page(published(fleet([worker(10), worker(2)])), now_ms=AT_MS)
    assert [row.id for row in page.replicas] == ["worker-2", "worker-10"]
    assert sorted(["a10", "10", "a", "2b", "2"], key=natural_key) == ["a", "a10", "2", "2b", "10"]


def test_preemptions_show_how_often_they_happen_lately() -> None:
    calm, thrashing = worker(0, preemptions=1_200), worker(1, preemptions=7, preemptions_per_min=3.5)
    page = fleet_page(published(fleet([calm, thrashing])), now_ms=AT_MS)
    assert [row.preemptions for row in page.replicas] == ["1,200", "7, 3.5/min"]


def test_interactive_queues_come_first() -> None:
    page = fleet_page(published(fleet([worker(0)])), now_ms=AT_MS)
    assert [(row.klass, row.depth, row.oldest) for row in page.queues] == [
        ("interactive", "3", "240 ms"),
        ("batch", "21", "1 min 14 s"),
    ]


@pytest.mark.parametrize(("age_ms", "stale"), [(0, False), (3_000, False), (3_001, True)])
def test_a_state_is_stale_after_three_seconds(age_ms: int, stale: bool) -> None:
    assert fleet_page(published(fleet([])), now_ms=AT_MS + age_ms).stale is stale


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (count_text(84_000), "84,000"),
        (count_text(12.5), "13"),
        (rate_text(0), "0"),
        (rate_text(7.25), "7.3"),
        (rate_text(9.949), "9.9"),
        (rate_text(9.95), "10"),
        (rate_text(84_123.4), "84,123"),
        (percent_text(0.005), "1 %"),
        (duration_text(999.4), "999 ms"),
        (duration_text(999.5), "1.0 s"),
        (duration_text(59_949), "59.9 s"),
        (duration_text(59_950), "1 min 00 s"),
        (duration_text(3_599_499), "59 min 59 s"),
        (duration_text(3_600_000), "1 h 00 min"),
        (duration_text(26 * 3_600_000), "1 d 02 h"),
    ],
)
def test_number_formats(text: str, expected: str) -> None:
    assert text == expected


def test_the_administration_has_the_consoles_colours() -> None:
    tokens = (FRONTEND / "static/css/tokens.css").read_text()
    for name, ramp in (("slate", branding.SLATE), ("water", branding.WATER)):
        for step, value in ramp.items():
            assert f"--{name}-{step}: {value};" in tokens


def test_vendored_files_are_the_recorded_ones() -> None:
    assert vendor_differences() == []
    packages = json.loads(RECORD.read_text()).values()
    assert all("LICENSE" in package["sha256"] for package in packages)


def test_templates_hold_no_inline_script_or_style() -> None:
    forbidden = re.compile(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)|javascript:", re.IGNORECASE)
    for template in (FRONTEND / "templates").rglob("*.html"):
        assert not forbidden.search(template.read_text()), template
