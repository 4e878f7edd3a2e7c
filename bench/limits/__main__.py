"""`python -m bench.limits [--calls 10000]`: quota decisions, in process and on a real store.

The rules: a decision with a warm lease takes at most 50 µs at the 99th percentile, a refusal at most 1 ms
while a tenant asks for ten times its limits. Exit status 1 when one is broken.
"""

import argparse
import sys

from bench.limits.gateway import gateway_measure
from bench.limits.policies import policies_measure
from bench.report import bench_report


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=10_000, help="of every kind; a thousand take a second")
    options = parser.parse_args()
    rows = policies_measure(options.calls) + gateway_measure(options.calls)
    bench_report("limits", f"quota decisions, {options.calls:,} of every kind", rows)
    return 0 if all(row["rule"] == "holds" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
