"""Cuts streams, resumes them and repeats requests at random: one bill and one text for each request.

`python -m bench.faults.resume [--seconds N] [--seed S]`. The tests of the gate, only longer: half of the time
cuts, half of it histories. The first round has seed S, each further one the next; a failure prints its seed.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = (
    "tests/gateway/test_resume.py::test_cut_anywhere_and_resumed_anywhere",
    "tests/gateway/test_durable_histories.py",
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", default="")
    given = parser.parse_args(arguments)
    command = [sys.executable, "-m", "pytest", *TESTS, "-q", "-s", "-p", "no:cacheprovider"]
    seconds = str(given.seconds / len(TESTS))
    environment = {**os.environ, "SLUICE_FAULT_SECONDS": seconds, "SLUICE_FAULT_SEED": given.seed}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
