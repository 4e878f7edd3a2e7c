"""Runs one bench, simulation, mutation, fuzz or fault suite by its name: `suite.py VERB SUITE [arguments]`.

A suite is a module that can be run. One that is not built yet is said to be so, and the exit status is 2.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = {
    "bench": ROOT / "bench",
    "mutate": ROOT / "bench" / "mutate",
    "fuzz": ROOT / "bench" / "fuzz",
    "faults": ROOT / "bench" / "faults",
    "sim": ROOT / "platform" / "fleetsim" / "scenarios",
}


def suites_built(verb: str) -> list[str]:
    """Modules and packages of the verb's folder that run as a program, but not helpers beside them; of the
    simulator, the scenarios that are shipped."""
    if verb == "sim":
        return sorted(path.stem for path in FOLDERS[verb].glob("*.toml"))
    programs = [path for path in FOLDERS[verb].glob("*.py") if _is_program(path)]
    packages = [path.parent for path in FOLDERS[verb].glob("*/__main__.py")]
    return sorted(path.stem for path in (*programs, *packages))


def _is_program(path: Path) -> bool:
    return '__name__ == "__main__"' in path.read_text(encoding="utf-8")


def suite_command(verb: str, suite: str) -> list[str]:
    if verb == "sim":
        return [sys.executable, "-m", "fleetsim", suite]
    package = ".".join(FOLDERS[verb].relative_to(ROOT).parts)
    return [sys.executable, "-m", f"{package}.{suite}"]


def main(arguments: list[str]) -> int:
    verb, suite, *rest = arguments
    built = suites_built(verb)
    if suite not in built:
        variable = "SCENARIO" if verb == "sim" else "SUITE"
        problem = f"suite {suite!r} is not built yet" if suite else f"say which: make {verb} {variable}=…"
        sys.stderr.write(f"{verb}: {problem}; built: {', '.join(built) or 'none'}\n")
        return 2
    os.chdir(ROOT)
    command = [*suite_command(verb, suite), *rest]
    return subprocess.run(command, check=False).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
