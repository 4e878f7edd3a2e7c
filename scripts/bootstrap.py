"""Makes `.venv` and installs the project into it: `bootstrap.py worker` to run it, `dev` to work on it.

Standard library only: it runs before anything is installed. Doing it again costs 50 ms; after an interrupted
installation it goes on from where that stopped. Whatever goes wrong is said in one line on standard error.
"""

import csv
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "pip.log"
INSTALLING = VENV / ".installing"
FIRST_INSTALL_BYTES = 3 << 30
OLDEST_PIP = (22, 3)  # the first with `pip --python`

_NETWORK = re.compile(
    r"Max retries exceeded|NewConnectionError|Connection refused|Connection broken|ConnectTimeout|ReadTimeout"
    r"|timed out|Temporary failure in name resolution|Name or service not known|ProxyError|SSLError"
    r"|Network is unreachable|IncompleteRead|ConnectionResetError|Connection aborted"
)


class BootstrapError(Exception):
    """One line that says what is wrong and what to do about it."""


def main(arguments: list[str]) -> int:
    extra = arguments[0] if arguments else "worker"
    if extra not in {"worker", "dev"}:
        raise BootstrapError(f"unknown extra {extra!r}: worker or dev")
    if sys.version_info[:2] != (3, 11):
        raise BootstrapError("this needs python3.11: apt-get install python3.11 python3-pip")
    lock = _lock()
    if _is_installed(extra):
        return 0
    pip_check()
    _writable_check()
    _space_check()
    _venv_ensure()
    if INSTALLING.exists():
        broken_packages_remove(VENV / "lib" / "python3.11" / "site-packages")
    INSTALLING.touch()
    _say(f"installing Sluice [{extra}] into {VENV}")
    _pip_install(extra, lock)
    _stamp(extra).write_text(_fingerprint(extra))
    INSTALLING.unlink()
    return 0


def _lock() -> int:
    """One installation at a time. pip inherits the descriptor: if we are killed, it still counts."""
    descriptor = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _say("another installation into this folder is running; waiting for it")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _stamp(extra: str) -> Path:
    return VENV / f".installed-{extra}"


def _fingerprint(extra: str) -> str:
    """Changes with whatever the installation depends on. Written only after success."""
    digest = hashlib.sha256(f"{extra}\n{ROOT}\n{sys.version}\n".encode())
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def _is_installed(extra: str) -> bool:
    """`dev` holds everything that `worker` holds."""
    if INSTALLING.exists() or not PYTHON.exists():
        return False
    stamps = [(_stamp(name), name) for name in {extra, "dev"}]
    return any(stamp.exists() and stamp.read_text() == _fingerprint(name) for stamp, name in stamps)


def pip_check() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "pip", "--version"], capture_output=True, text=True, check=False
    )
    found = re.match(r"pip (\d+)\.(\d+)", answer.stdout)
    if found is None:
        raise BootstrapError(f"{sys.executable} has no pip: apt-get install python3-pip")
    if (int(found[1]), int(found[2])) < OLDEST_PIP:
        raise BootstrapError(
            f"pip {found[1]}.{found[2]} is too old (22.3 or newer is needed): apt-get install python3-pip"
        )


def _space_check() -> None:
    free_bytes = shutil.disk_usage(ROOT).free
    if not VENV.exists() and free_bytes < FIRST_INSTALL_BYTES:
        raise BootstrapError(
            f"no disk space: the first installation needs at least 3 GiB below {ROOT}, "
            f"{free_bytes / 2**30:.1f} are free; free some, then run this again"
        )


def _writable_check() -> None:
    folder = VENV if VENV.exists() else ROOT
    if os.access(folder, os.W_OK | os.X_OK):
        return
    owner = folder.stat().st_uid
    if folder == VENV and owner != os.geteuid() and os.access(ROOT, os.W_OK | os.X_OK):
        raise BootstrapError(f"{VENV} belongs to another user (uid {owner}): remove it, then run this again")
    raise BootstrapError(
        f"cannot write in {folder}: copy the checkout to a folder of your own and run this there"
    )


def _venv_ensure() -> None:
    """Debian's Python may lack ensurepip, so the environment has no pip of its own."""
    if PYTHON.exists():
        works = subprocess.run([str(PYTHON), "-c", ""], capture_output=True, check=False)  # noqa: S603
        if works.returncode == 0:
            return
    command = [sys.executable, "-m", "venv", "--without-pip", "--clear", str(VENV)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if answer.returncode != 0:
        raise _explained(answer.stdout + answer.stderr, f"cannot make {VENV}")


def broken_packages_remove(site_packages: Path) -> None:
    """Delete the metadata of packages that an interrupted installation left without some of their files.

    pip takes a package for installed once its metadata folder exists, whatever else is missing.
    """
    for metadata in sorted(site_packages.glob("*.dist-info")):
        if not _is_whole(metadata):
            _say(f"{metadata.name.removesuffix('.dist-info')} was only half installed: installing it again")
            shutil.rmtree(metadata)
    for leftover in site_packages.glob("~*"):  # where pip puts what it is about to replace
        shutil.rmtree(leftover, ignore_errors=True)


def _is_whole(metadata: Path) -> bool:
    if not all((metadata / name).exists() for name in ("RECORD", "METADATA", "INSTALLER")):
        return False
    with (metadata / "RECORD").open(newline="", encoding="utf-8") as file:
        for name, _, size in csv.reader(file):
            path = metadata.parent / name
            if name.endswith(".pyc"):
                continue
            if not path.exists() or (size and path.stat().st_size != int(size)):
                return False
    return True


def _pip_install(extra: str, lock: int) -> None:
    command = [sys.executable, "-m", "pip", "--python", str(PYTHON), "install"]
    command += ["--constraint", "constraints.txt", "--editable", f".[{extra}]"]
    unwanted = {"PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PYTHONPATH", "PYTHONHOME"}
    environment = {name: value for name, value in os.environ.items() if name not in unwanted}
    environment |= {
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_ROOT_USER_ACTION": "ignore",
        "PIP_NO_INPUT": "1",
    }
    with subprocess.Popen(  # noqa: S603
        command,
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        pass_fds=[lock],
    ) as pip:
        try:
            errors = _follow(pip)
        except BaseException:
            pip.terminate()
            raise
    if pip.returncode != 0:
        raise _explained(errors, "the installation failed")


def _follow(pip: "subprocess.Popen[str]") -> str:
    """pip shows its progress itself; its complaints go to a file, and a line of ours says what they mean."""
    assert pip.stderr is not None
    lines: list[str] = []
    with LOG.open("w", encoding="utf-8") as log:
        for line in pip.stderr:
            if "Retrying" in line and not any("Retrying" in earlier for earlier in lines):
                _say("the package registry does not answer, trying again")
            lines.append(line)
            log.write(line)
    return "".join(lines)


def _explained(errors: str, otherwise: str) -> BootstrapError:
    again = "then run this again (it goes on from here" + (f"; details: {LOG})" if LOG.exists() else ")")
    if "No space left on device" in errors or "Disk quota exceeded" in errors:
        return BootstrapError(f"no disk space for {VENV} or for pip's temporary files: free some, {again}")
    if _NETWORK.search(errors):
        return BootstrapError(
            f"the package registry is out of reach: check the network and pip's index settings, {again}"
        )
    if missing := re.search(r"No matching distribution found for (\S+)", errors):
        return BootstrapError(
            f"the package registry is out of reach or has no {missing[1]}: "
            f"check the network and pip's index settings, {again}"
        )
    if "DO NOT MATCH THE HASHES" in errors or "BadZipFile" in errors:
        return BootstrapError(f"a download was damaged: clear pip's cache (pip cache purge), {again}")
    if unwritable := re.search(r"(Permission denied|Read-only file system): '?([^'\n]+)", errors):
        return BootstrapError(f"cannot write {unwritable[2]} ({unwritable[1]}): make it yours, {again}")
    last = errors.strip().splitlines()[-1:] or ["no message"]
    details = f" (details: {LOG})" if LOG.exists() else ""
    return BootstrapError(f"{otherwise}: {last[0].strip()}{details}")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _terminated(number: int, frame: object) -> None:
    del number, frame
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)
    try:
        sys.exit(main(sys.argv[1:]))
    except BootstrapError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("interrupted: run this again, it goes on from here")
    except OSError as error:
        sys.exit(str(_explained(str(error), "the installation failed")))
