"""`scripts/bootstrap.py` on small projects that need no registry: what it says when something is wrong."""

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.devservices.folders import read_only
from tests.devservices.processes import gone_within

ROOT = Path(__file__).resolve().parents[2]
BASE_PYTHON = Path(sys.base_prefix) / "bin" / "python3.11"  # has pip; the one of `.venv` has none

# A build backend that lies in the project itself: an editable wheel with one module, or a pause.
BACKEND = """
import os, time, zipfile
def build_editable(directory, config_settings=None, metadata_directory=None):
    if os.environ.get("TEST_PAUSE"):
        with open(os.environ["TEST_PAUSE"], "w") as fifo:
            fifo.write(str(os.getpid()))
        time.sleep(60)
    name = "tiny-1-py3-none-any.whl"
    files = {"tiny.py": "ANSWER = 42", "tiny-1.dist-info/METADATA": METADATA, "tiny-1.dist-info/WHEEL": WHEEL}
    files["tiny-1.dist-info/RECORD"] = "".join(f"{path},,\\n" for path in files)
    with zipfile.ZipFile(os.path.join(directory, name), "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return name
def get_requires_for_build_editable(config_settings=None):
    return []
METADATA = "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\nProvides-Extra: worker\\nProvides-Extra: dev\\n"
if os.path.isdir("wheels"):
    METADATA += "Requires-Dist: tiny-leaf\\n"
WHEEL = "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
"""
PROJECT = """
[build-system]
requires = [{}]
build-backend = "backend"
backend-path = ["."]
[project]
name = "tiny"
version = "1"
"""

pytestmark = pytest.mark.skipif(not BASE_PYTHON.exists(), reason=f"no {BASE_PYTHON}")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "bootstrap.py", tmp_path / "scripts")
    (tmp_path / "backend.py").write_text(BACKEND)
    (tmp_path / "constraints.txt").write_text("")
    _require(tmp_path, "")
    return tmp_path


def _require(project: Path, requirement: str) -> None:
    (project / "pyproject.toml").write_text(PROJECT.format(f'"{requirement}"' if requirement else ""))


def _environment(**variables: str) -> dict[str, str]:
    bare = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_RETRIES": "0",
    }
    return {**bare, **variables}


def _run(
    project: Path, python: Path = BASE_PYTHON, extra: str = "worker", **variables: str
) -> tuple[int, str]:
    """Exit status and the last line on standard error."""
    answer = subprocess.run(
        [python, project / "scripts" / "bootstrap.py", extra],
        env=_environment(**variables),
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.returncode, (answer.stderr.strip().splitlines() or [""])[-1]


def _answer(project: Path) -> str:
    command = [str(project / ".venv" / "bin" / "python"), "-c", "import tiny; print(tiny.ANSWER)"]
    answer: subprocess.CompletedProcess[str] = subprocess.run(
        command, capture_output=True, text=True, check=False
    )
    return answer.stdout.strip()


def test_it_installs_from_nothing_and_has_nothing_to_do_the_second_time(project: Path) -> None:
    assert _run(project)[0] == 0
    assert _answer(project) == "42"

    assert _run(project, PATH="/nonexistent") == (0, "")


def test_dev_serves_worker_not_the_other_way_round_and_changed_constraints_install_again(
    project: Path,
) -> None:
    _run(project, extra="worker")
    assert "installing Sluice [dev]" in _run(project, extra="dev")[1]

    (project / ".venv" / ".installed-worker").unlink()
    assert _run(project, extra="worker") == (0, "")

    (project / "constraints.txt").write_text("tiny==1\n")

    assert "installing" in _run(project)[1]


def test_a_registry_out_of_reach_is_one_line_and_the_next_run_goes_on(project: Path) -> None:
    _require(project, "hatchling")

    status, line = _run(project, PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="1")

    assert status == 1
    assert line.startswith("the package registry is out of reach: check the network")
    assert "run this again" in line
    _require(project, "")
    assert _run(project)[0] == 0
    assert _answer(project) == "42"


def test_a_registry_without_the_package_is_one_line_that_names_it(project: Path) -> None:
    _require(project, "hatchling")

    status, line = _run(project, PIP_NO_INDEX="1")

    assert status == 1
    assert line.startswith("the package registry is out of reach or has no hatchling")


def test_an_interrupted_installation_ends_its_pip_and_the_next_run_goes_on(project: Path) -> None:
    fifo = project / "paused"
    os.mkfifo(fifo)
    first = subprocess.Popen(
        [BASE_PYTHON, project / "scripts" / "bootstrap.py", "worker"],
        env=_environment(TEST_PAUSE=str(fifo)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    builder = int(fifo.read_text())  # blocks until the build has begun

    os.killpg(first.pid, signal.SIGINT)  # what Ctrl-C does

    _, errors = first.communicate(timeout=20)
    assert errors.splitlines()[-1] == "interrupted: run this again, it goes on from here"
    assert gone_within(builder, 5)
    assert not (project / ".venv" / ".installed-worker").exists()
    assert _run(project)[0] == 0
    assert _answer(project) == "42"


def test_a_package_that_was_half_written_is_installed_again(project: Path) -> None:
    wheels = project / "wheels"
    wheels.mkdir()
    _wheel_write(wheels, "tiny_leaf", "ANSWER = 43")
    assert _run(project, PIP_FIND_LINKS=str(wheels), PIP_NO_INDEX="1")[0] == 0
    leaf = project / ".venv" / "lib" / "python3.11" / "site-packages" / "tiny_leaf.py"
    leaf.write_text("")
    (project / ".venv" / ".installing").touch()  # what an installation killed halfway leaves

    assert _run(project, PIP_FIND_LINKS=str(wheels), PIP_NO_INDEX="1")[0] == 0

    assert leaf.read_text() == "ANSWER = 43"


def _wheel_write(folder: Path, name: str, text: str) -> None:
    metadata = f"{name}-1.dist-info"
    files = {
        f"{name}.py": text,
        f"{metadata}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        f"{metadata}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{metadata}/RECORD"] = "".join(f"{path},,{len(content)}\n" for path, content in files.items())
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)


def test_a_broken_environment_is_made_again(project: Path) -> None:
    _run(project)
    python = project / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nonexistent/python3.11")

    assert _run(project)[0] == 0

    assert _answer(project) == "42"


def test_a_python_without_pip_is_told_what_to_install(project: Path) -> None:
    _run(project)  # an environment without pip, to run the second one with

    bare = shutil.copytree(project / "scripts", project / "other" / "scripts").parent
    status, line = _run(bare, python=project / ".venv" / "bin" / "python")

    assert (status, line.endswith("has no pip: apt-get install python3-pip")) == (1, True)


def test_a_pip_that_is_too_old_is_told_what_to_install(project: Path) -> None:
    old = project / "old" / "pip"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text("")
    (old / "__main__.py").write_text("print('pip 20.3.4 from somewhere (python 3.11)')")

    status, line = _run(project, PYTHONPATH=str(project / "old"))

    assert (status, line) == (1, "pip 20.3 is too old (22.3 or newer is needed): apt-get install python3-pip")


def test_a_read_only_checkout_is_one_line_that_says_what_to_do(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with read_only(tmp_path_factory.mktemp("disk") / "checkout", project) as checkout:
        answer = _run(checkout)

    assert answer == (
        1,
        f"cannot write in {checkout}: copy the checkout to a folder of your own and run this there",
    )


def test_no_disk_space_is_one_line(project: Path) -> None:
    disk = project / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("cannot mount a small file system here")
    try:
        shutil.copytree(project / "scripts", disk / "scripts")
        for name in ("pyproject.toml", "constraints.txt", "backend.py"):
            shutil.copy(project / name, disk)
        first = _run(disk)
        (disk / ".venv").mkdir()  # so it was begun: go on as far as the disk allows
        (disk / "filling").write_bytes(bytes(shutil.disk_usage(disk).free - 4096))
        second = _run(disk)
    finally:
        subprocess.run(["umount", str(disk)], check=True)

    assert first[0] == second[0] == 1
    assert first[1].startswith("no disk space: the first installation needs at least 3 GiB")
    assert second[1].startswith("no disk space for ")
