"""Fuzzes the gateway's API from its own OpenAPI document with schemathesis, before a scripted worker.

`python -m bench.fuzz.api [--seconds N]`. The test of the gate, only longer; a failure prints its request.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEST = "tests/gateway/test_api_fuzz.py"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    given = parser.parse_args(arguments)
    command = [sys.executable, "-m", "pytest", TEST, "-q", "-s", "-p", "no:cacheprovider"]
    environment = {**os.environ, "SLUICE_FUZZ_SECONDS": str(given.seconds)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
