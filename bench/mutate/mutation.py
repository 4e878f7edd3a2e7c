"""Breaks a copy of the code in named ways and runs its tests: a suite that stays green is blind there."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
RUN_TIMEOUT_S = 300
PYTEST_INI = """[pytest]
addopts = --import-mode=importlib -p no:django -p no:cacheprovider
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""


@dataclass(frozen=True)
class Mutation:
    """`old` must occur exactly once in `path`; `new` takes its place."""

    name: str
    path: str
    old: str
    new: str


@dataclass(frozen=True)
class Suite:
    """`folders` are what the tests need of the project; the code under test among them."""

    name: str
    folders: Sequence[str]
    tests: Sequence[str]
    mutations: Sequence[Mutation]


def suite_run(suite: Suite) -> int:
    """Print a table. Exit status 1 when a mutation survives or the suite is red without one. Raises
    ValueError, before anything is run, when the code is not what a mutation takes it for."""
    for mutation in suite.mutations:
        count = (ROOT / mutation.path).read_text(encoding="utf-8").count(mutation.old)
        if count != 1:
            raise ValueError(f"{mutation.name}: {mutation.old!r} occurs {count} times in {mutation.path}")
    with tempfile.TemporaryDirectory(prefix="mutate-") as name:
        copy = Path(name)
        for folder in suite.folders:
            shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / "tests" / "__init__.py").touch()
        (copy / "pytest.ini").write_text(PYTEST_INI)
        if failed := _tests_run(copy, suite.tests):
            sys.stderr.write(f"mutate: {suite.name} is red without a mutation: {failed}\n")
            return 1
        table = Table("mutation", "killed by", "seconds", title=f"mutate {suite.name}")
        survivors = 0
        for mutation in track(suite.mutations, description="breaking", console=Console(stderr=True)):
            begun = time.monotonic()
            killer = _mutated_run(copy, mutation, suite.tests)
            survivors += not killer
            seconds = f"{time.monotonic() - begun:.1f}"
            table.add_row(mutation.name, killer or "[bold red]SURVIVES[/]", seconds)
        Console(width=140).print(table)
        print(f"{len(suite.mutations) - survivors} of {len(suite.mutations)} mutations killed")
        return 1 if survivors else 0


def _mutated_run(copy: Path, mutation: Mutation, tests: Sequence[str]) -> str:
    path = copy / mutation.path
    original = path.read_text(encoding="utf-8")
    path.write_text(original.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        return _tests_run(copy, tests)
    finally:
        path.write_text(original, encoding="utf-8")


def _tests_run(copy: Path, tests: Sequence[str]) -> str:
    """The first test that fails, or an empty string."""
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", *tests]
    environment = {**os.environ, "PYTHONPATH": f"{copy}{os.pathsep}{copy / 'platform'}"}
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "timeout"
    if done.returncode == 0:
        return ""
    failures = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if not failures:
        return f"pytest exit status {done.returncode}: {(done.stdout + done.stderr)[-300:]}"
    return failures[0].split(" - ")[0].rpartition("::")[2] or failures[0]
