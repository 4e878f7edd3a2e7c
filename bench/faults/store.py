"""The store of the quotas goes away under load, comes back empty, and is replaced by its replica.

`python -m bench.faults.store [--seconds N]`. The tests of the gate, only longer: it is paused for three
quarters of N seconds and for twice N. With N = 60, how long a gateway grants its whole share by itself, that
is 45 s and 120 s.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ("tests/gateway/test_quota_outages.py", "tests/gateway/test_quota_failover.py")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args(arguments)
    outages = ",".join(f"{given.seconds * part:g}" for part in (0.75, 2.0))
    command = [sys.executable, "-m", "pytest", *TESTS, "-q", "-s", "-p", "no:cacheprovider"]
    environment = {**os.environ, "SLUICE_FAULT_SECONDS": outages}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
