"""`scripts/suite.py`: suites by name, and exit status 2 for one that is not built yet."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "suite.py", tmp_path / "scripts")
    (tmp_path / "bench" / "fuzz").mkdir(parents=True)
    suite = 'import sys\nif __name__ == "__main__":\n    print("ran", *sys.argv[1:])\n    sys.exit(5)\n'
    (tmp_path / "bench" / "__init__.py").write_text("")
    (tmp_path / "bench" / "engine.py").write_text(suite)
    (tmp_path / "bench" / "fuzz" / "wire.py").write_text(suite)
    (tmp_path / "bench" / "report.py").write_text("# a helper, not a suite\n")
    (tmp_path / "bench" / "whole").mkdir()
    (tmp_path / "bench" / "whole" / "__init__.py").write_text("")
    (tmp_path / "bench" / "whole" / "__main__.py").write_text(suite)
    return tmp_path


def _run(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(project / "scripts" / "suite.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_suite_runs_with_its_arguments_and_its_exit_status_is_ours(project: Path) -> None:
    answer = _run(project, "fuzz", "wire", "--seconds", "5")

    assert (answer.returncode, answer.stdout) == (5, "ran --seconds 5\n")


def test_a_package_is_a_suite_too(project: Path) -> None:
    assert _run(project, "bench", "whole", "--quick").stdout == "ran --quick\n"


@pytest.mark.parametrize("verb", ["bench", "sim", "mutate", "fuzz", "faults"])
def test_a_suite_that_is_not_built_says_so(project: Path, verb: str) -> None:
    answer = _run(project, verb, "teleport")

    assert answer.returncode == 2
    assert "suite 'teleport' is not built yet" in answer.stderr


def test_without_a_name_those_that_are_built_are_listed_and_helpers_are_not(project: Path) -> None:
    answer = _run(project, "bench", "")

    assert answer.returncode == 2
    assert answer.stderr == "bench: say which: make bench SUITE=…; built: engine, whole\n"


def test_a_name_cannot_leave_its_folder(project: Path) -> None:
    assert _run(project, "fuzz", "../engine").returncode == 2
