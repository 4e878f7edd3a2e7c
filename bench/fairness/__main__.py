"""`python -m bench.fairness [part …]`: the policy alone, the dispatcher around it, then the real stack."""

import argparse
import subprocess
import sys

PARTS = ("decisions", "dispatcher", "stack")


def main() -> int:
    """Every part runs in a process of its own. Exit status 1 when one of them does not hold its number."""
    parser = argparse.ArgumentParser(prog="python -m bench.fairness", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; default: all")
    chosen = parser.parse_args().parts or PARTS
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"no part is called {', '.join(sorted(unknown))}")
    commands = [[sys.executable, "-m", f"bench.fairness.{part}"] for part in chosen]
    return max([1 if subprocess.run(command, check=False).returncode else 0 for command in commands])


if __name__ == "__main__":
    sys.exit(main())
