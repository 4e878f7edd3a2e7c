"""Scenario files: those that are shipped, wrong ones, and the command that runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fleetsim.report.result import result_read
from fleetsim.run import scenario_run
from fleetsim.scenario import FOLDER, ScenarioError, scenario_of, scenario_read, scenarios_shipped

ROOT = Path(__file__).parents[2]
NAMED = {"spec-peak", "noisy-neighbour", "double-in-4-min", "zone-loss", "day"}
SMALL = """
title = "small"
duration_s = 20
[fleet]
replicas = 2
[[workload]]
kind = "stream"
name = "tenant"
rate = 3.0
end_s = 20
[[variant]]
name = "one replica"
set = { "fleet.replicas" = 1 }
[[check]]
name = "inter-token latency"
value = "itl_ms.p95"
relation = "<"
limit = 40
unit = "ms"
"""


def config(**parts: Any) -> dict[str, Any]:
    workload = [{"kind": "stream", "name": "tenant", "rate": 3.0, "end_s": 10.0}]
    return {
        "title": "t",
        "duration_s": 10,
        "fleet": {"replicas": 1},
        "workload": workload,
        **parts,
    }


def fleetsim(*arguments: str, state: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "SLUICE_STATE": str(state)}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def test_the_promised_scenarios_are_shipped() -> None:
    assert set(scenarios_shipped()) >= NAMED


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.toml")))
def test_every_shipped_scenario_runs_with_all_its_variants_and_checks(name: str) -> None:
    """A few seconds of each: that no path leads nowhere."""
    scenario = scenario_read(FOLDER / f"{name}.toml")
    short = {"duration_s": 2, "measure_from_s": 0, "measure_to_s": 0, "fleet.replicas": 3}
    variants = [{**part, "set": {**part["set"], **short}} for part in scenario.config.get("variant", ())]
    result = scenario_run(scenario.changed({**short, "variant": variants}))
    assert len(result.checks) == len(scenario.file.check)
    assert [variant.name for variant in result.variants] == [part.name for part in scenario.file.variant]


def test_the_command_writes_what_it_found_and_says_whether_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    for limit, status in ((40, 0), (1, 1)):
        file.write_text(SMALL.replace("limit = 40", f"limit = {limit}"))
        ran = fleetsim("-m", "fleetsim", str(file), state=tmp_path)
        assert ran.returncode == status, ran.stderr
    written = json.loads((tmp_path / "sim" / "small.json").read_text())
    promised = {"ttft_ms", "itl_ms", "added_ttft_ms", "output_tokens_per_s", "utilisation"}
    assert written.keys() >= promised | {"usd_per_million", "events_sha256"}
    assert written["ttft_ms"].keys() >= {"p50", "p95", "p99", "max"}
    assert result_read(tmp_path / "sim" / "small.json").variants[0].name == "one replica"
    assert "<html" in (tmp_path / "sim" / "small.html").read_text()


def test_a_seed_given_to_the_command_is_used(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    hashes = []
    for seed in ("1", "2", "1"):
        assert fleetsim("-m", "fleetsim", str(file), "--seed", seed, state=tmp_path).returncode == 0
        hashes.append(result_read(tmp_path / "sim" / "small.json").events_sha256)
    assert hashes[0] == hashes[2] != hashes[1]


def test_a_name_that_is_not_shipped_is_an_error_that_says_so(tmp_path: Path) -> None:
    ran = fleetsim("-m", "fleetsim", "no-such", state=tmp_path)
    assert (ran.returncode, "no-such" in ran.stderr) == (2, True)
    ran = fleetsim("scripts/suite.py", "sim", "no-such", state=tmp_path)
    assert ran.returncode == 2
    assert "noisy-neighbour" in ran.stderr


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"duration_s": 0}, "duration_s"),
        ({"fleet": {"replicas": 1, "model": "other"}}, "model"),
        ({"fleet": {}}, "replicas"),
        ({"unknown": 1}, "unknown"),
        ({"event": [{"kind": "zone_loss"}]}, "at_s"),
        ({"check": [{"name": "a", "value": "b", "relation": "!=", "limit": 1}]}, "relation"),
    ],
)
def test_a_scenario_that_cannot_be_names_its_field(parts: dict[str, Any], says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        scenario_of("test", config(**parts))


@pytest.mark.parametrize(
    "parts",
    [
        {"check": [{"name": "a", "value": "no.such", "relation": "=", "limit": 1}]},
        {"variant": [{"name": "a", "set": {"title.deeper": 1}}]},
        {"queue": {"settings": {"no_such": 1}}},
    ],
)
def test_what_only_a_run_can_find_is_an_error_too(parts: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError):
        scenario_run(scenario_of("test", config(**parts)))


def test_a_file_that_is_no_toml_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("title = ")
    with pytest.raises(ScenarioError, match="no TOML"):
        scenario_read(file)
