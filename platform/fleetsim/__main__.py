"""`python -m fleetsim SCENARIO`: a shipped scenario by its name, or the path of a scenario file.

Prints what it found, writes `sim/NAME.json` and `sim/NAME.html` below the state folder, and ends with 1 when
a check of the scenario does not hold.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress as Bars
from rich.progress import TaskID

from config.environment import state_dir
from fleetsim.report.page import page_of
from fleetsim.report.result import Result, result_write
from fleetsim.report.terminal import print_result
from fleetsim.run import scenario_run
from fleetsim.scenario import FOLDER, Scenario, ScenarioError, scenario_read, scenarios_shipped
from fleetsim.traces import TraceError
from fleetsim.workloads import WorkloadError


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="fleetsim", description=__doc__.splitlines()[0])
    parser.add_argument("scenario", help=f"a file, or one of: {', '.join(scenarios_shipped())}")
    parser.add_argument("--seed", type=int, help="instead of the scenario's")
    options = parser.parse_args(arguments)
    try:
        scenario = scenario_read(_path(options.scenario))
        if options.seed is not None:
            scenario = scenario.changed({"seed": options.seed})
        result = _run(scenario)
    except (OSError, ScenarioError, TraceError, WorkloadError) as error:
        sys.stderr.write(f"fleetsim: {error}\n")
        return 2
    folder = state_dir() / "sim"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{scenario.name}.json"
    result_write(result, path)
    path.with_suffix(".html").write_text(page_of(result), encoding="utf-8")
    console = Console()
    print_result(result, console)
    console.print(f"written to {path}")
    return 0 if all(check.holds for check in result.checks) else 1


def _path(name: str) -> Path:
    shipped = FOLDER / f"{name}.toml"
    return shipped if shipped.exists() else Path(name)


def _run(scenario: Scenario) -> Result:
    console = Console(stderr=True)
    with Bars(console=console, disable=not console.is_terminal, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(name: str, part: float) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=1.0)
            bars.update(tasks[name], completed=part)

        return scenario_run(scenario, progress)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
