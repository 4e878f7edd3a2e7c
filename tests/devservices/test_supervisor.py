"""The supervisor with small scripts as children: failed starts, restarts, order of stopping, no orphans."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from devservices.child import ProcessSpec
from devservices.supervisor import AlreadyTold, StartFailed, Supervisor
from tests.devservices.processes import gone_within, line_of, script

SLEEPER = "import time; time.sleep(60)"
# Appends its name to a file when told to stop, and then takes a moment to go.
RECORDER = """
import signal, sys, time
def stop(number, frame):
    with open(sys.argv[1], "a") as file:
        file.write(sys.argv[2] + "\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
open(sys.argv[1] + "." + sys.argv[2], "w").close()
time.sleep(60)
"""
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x', flush=True); {SLEEPER}"


class Watched:
    """A supervisor whose changes and reports can be awaited."""

    def __init__(self) -> None:
        self.changes: asyncio.Queue[dict[str, int]] = asyncio.Queue()
        self.reports: asyncio.Queue[str] = asyncio.Queue()
        self.supervisor = Supervisor(
            on_change=lambda: self.changes.put_nowait(self.supervisor.pids),
            report=self.reports.put_nowait,
            keep_open=(),
        )

    async def pid_other_than(self, name: str, pid: int) -> int:
        async with asyncio.timeout(10):
            while (found := (await self.changes.get()).get(name, pid)) == pid:
                pass
        return found


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    result = Watched()
    yield result
    hurry = asyncio.Event()
    hurry.set()
    await result.supervisor.stop([], hurry)


def _spec(folder: Path, name: str, source: str, *arguments: str, stop_timeout_s: float = 10.0) -> ProcessSpec:
    return ProcessSpec(
        name=name,
        command=[sys.executable, "-c", source, *arguments],
        environment={"PATH": os.environ["PATH"]},
        cwd=folder,
        log=folder / f"{name}.log",
        stop_timeout_s=stop_timeout_s,
    )


def _ready_when(spec: ProcessSpec, path: Path) -> ProcessSpec:
    """The same process, ready once it has made a file."""
    fields = {name: getattr(spec, name) for name in spec.__dataclass_fields__}
    return ProcessSpec(**{**fields, "is_ready": lambda pid: path.exists()})


async def test_a_process_that_dies_while_starting_is_a_failed_start_that_quotes_its_log(
    watched: Watched, tmp_path: Path
) -> None:
    spec = _spec(tmp_path, "broken", "import sys; sys.exit('no such setting: COLOUR')")

    with pytest.raises(StartFailed) as failure:
        await watched.supervisor.start(_ready_when(spec, tmp_path / "never"))

    assert str(failure.value).splitlines() == [
        f"broken did not start (status 1); its log {spec.log} ends with:",
        "no such setting: COLOUR",
    ]


async def test_a_death_before_everything_runs_is_told_to_whoever_starts(
    watched: Watched, tmp_path: Path
) -> None:
    await watched.supervisor.start(_spec(tmp_path, "early", "raise SystemExit(3)"))

    async with asyncio.timeout(10):
        failure = await watched.supervisor.failed

    assert "early did not start (status 3)" in str(failure)


async def test_a_program_that_does_not_exist_is_a_failed_start(watched: Watched, tmp_path: Path) -> None:
    spec = ProcessSpec(
        name="absent",
        command=["/nonexistent/program"],
        environment={},
        cwd=tmp_path,
        log=tmp_path / "absent.log",
    )

    with pytest.raises(StartFailed, match="absent cannot be started"):
        await watched.supervisor.start(spec)


async def test_a_killed_process_is_started_again_and_its_new_pid_is_told(
    watched: Watched, tmp_path: Path
) -> None:
    await watched.supervisor.start(_spec(tmp_path, "worker", SLEEPER))
    watched.supervisor.running()
    first = watched.supervisor.pids["worker"]

    os.kill(first, signal.SIGKILL)

    second = await watched.pid_other_than("worker", first)
    assert watched.supervisor.pids == {"worker": second}
    assert "worker ended (SIGKILL), again in 0.2 s" in await watched.reports.get()


async def test_a_process_that_keeps_dying_is_started_less_and_less_often(
    watched: Watched, tmp_path: Path
) -> None:
    await watched.supervisor.start(_spec(tmp_path, "worker", "raise SystemExit(1)"))
    watched.supervisor.running()

    async with asyncio.timeout(20):
        reports = [await watched.reports.get() for _ in range(3)]

    assert [report.split("again in ")[1].split(" s")[0] for report in reports] == ["0.2", "0.4", "0.8"]


async def test_children_of_a_dead_process_go_before_it_is_started_again(
    watched: Watched, tmp_path: Path
) -> None:
    source = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "{SLEEPER}"])
with open("child.pid", "w") as file: file.write(str(child.pid))
open("started", "w").close()
time.sleep(60)
"""
    await watched.supervisor.start(_ready_when(_spec(tmp_path, "parent", source), tmp_path / "started"))
    watched.supervisor.running()
    first = watched.supervisor.pids["parent"]
    grandchild = int((tmp_path / "child.pid").read_text())

    os.kill(first, signal.SIGKILL)

    await watched.pid_other_than("parent", first)
    assert gone_within(grandchild, 5)


async def test_stages_stop_one_after_the_other(watched: Watched, tmp_path: Path) -> None:
    record = tmp_path / "record"
    for name in ("database", "worker", "gateway"):
        spec = _spec(tmp_path, name, RECORDER, str(record), name)
        await watched.supervisor.start(_ready_when(spec, tmp_path / f"record.{name}"))

    await watched.supervisor.stop([["gateway"], ["worker"], ["database"]], asyncio.Event())

    assert record.read_text().split() == ["gateway", "worker", "database"]
    assert watched.supervisor.pids == {}


async def test_whoever_does_not_stop_in_time_is_killed(watched: Watched, tmp_path: Path) -> None:
    spec = _spec(tmp_path, "stubborn", STUBBORN, stop_timeout_s=0.1)
    await watched.supervisor.start(_printed(spec))
    pid = watched.supervisor.pids["stubborn"]

    await watched.supervisor.stop([["stubborn"]], asyncio.Event())

    assert gone_within(pid, 0)
    assert "stubborn did not stop in time and is killed" in await watched.reports.get()


async def test_a_hurry_does_not_wait_for_anybody(watched: Watched, tmp_path: Path) -> None:
    await watched.supervisor.start(_printed(_spec(tmp_path, "stubborn", STUBBORN, stop_timeout_s=60)))
    hurry = asyncio.Event()
    stopping = asyncio.create_task(watched.supervisor.stop([["stubborn"]], hurry))
    await asyncio.sleep(0)

    hurry.set()

    async with asyncio.timeout(10):
        await stopping
    assert watched.reports.empty()  # it was asked for


async def test_a_program_run_once_returns_what_it_printed(watched: Watched, tmp_path: Path) -> None:
    assert (
        await watched.supervisor.run_once(_spec(tmp_path, "once", "print('slug', 'digest')"))
        == "slug digest\n"
    )
    with pytest.raises(StartFailed, match="once did not start"):
        await watched.supervisor.run_once(_spec(tmp_path, "once", "raise SystemExit(1)"))


async def test_a_program_whose_errors_were_shown_has_said_why_unless_it_was_killed(
    watched: Watched, tmp_path: Path
) -> None:
    with pytest.raises(AlreadyTold):
        await watched.supervisor.run_once(_spec(tmp_path, "once", "raise SystemExit(1)"), shown=True)

    killed = _spec(tmp_path, "once", "import os; os.kill(os.getpid(), 9)")
    with pytest.raises(StartFailed, match=r"once did not start \(SIGKILL\)") as failure:
        await watched.supervisor.run_once(killed, shown=True)
    assert not isinstance(failure.value, AlreadyTold)


async def test_a_killed_guardian_is_replaced_by_one_that_knows_everybody(
    watched: Watched, tmp_path: Path
) -> None:
    await watched.supervisor.start(_spec(tmp_path, "worker", SLEEPER))
    first = watched.supervisor._guardian.pid

    os.kill(first, signal.SIGKILL)

    async with asyncio.timeout(10):
        assert await watched.reports.get() == "the guardian ended; starting another"
    assert watched.supervisor._guardian.pid != first


def test_a_killed_supervisor_leaves_nobody_within_five_seconds(tmp_path: Path) -> None:
    source = """
import asyncio, sys
from pathlib import Path
from tests.devservices.test_supervisor import SLEEPER, STUBBORN, Watched, _printed, _spec
async def main():
    watched = Watched()
    folder = Path(sys.argv[1])
    await watched.supervisor.start(_spec(folder, "sleeper", SLEEPER))
    await watched.supervisor.start(_printed(_spec(folder, "stubborn", STUBBORN)))
    (folder / "run").mkdir()
    watched.supervisor.remove_at_end(folder / "run")
    print(watched.supervisor._guardian.pid, *watched.supervisor.pids.values(), flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    supervisor = script(f"import sys; sys.path.insert(0, {str(Path.cwd())!r})\n{source}", str(tmp_path))
    pids = [int(word) for word in line_of(supervisor).split()]
    assert len(pids) == 3

    supervisor.kill()
    supervisor.communicate()

    assert all(gone_within(pid, 5.0) for pid in pids)
    assert not (tmp_path / "run").exists()


def _printed(spec: ProcessSpec) -> ProcessSpec:
    """The same process, ready once it has printed something."""
    fields = {name: getattr(spec, name) for name in spec.__dataclass_fields__}
    return ProcessSpec(**{**fields, "is_ready": lambda pid: spec.log.stat().st_size > 0})
