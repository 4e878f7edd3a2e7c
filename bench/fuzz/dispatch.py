"""Fuzzes the version fence: random lives of a fleet of production parts on virtual time, seed after seed.

`python -m bench.fuzz.dispatch [--seconds N] [--seed S]`. A failure prints the seed and the least of its
history that still breaks a rule; the exit status is 1.
"""

import argparse
import logging
import sys
import time
from collections import Counter

from tests.dispatch.fence.histories import least_broken, seed_run

PROGRESS_S = 5.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1_000_000, help="of the first history")
    given = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    seen: Counter[str] = Counter()
    began = told = time.perf_counter()
    seed = given.seed
    while (now := time.perf_counter()) - began < given.seconds:
        world, rules = seed_run(seed)
        if rules:
            print(f"seed {seed}: {rules}")
            operations, still = least_broken(seed)
            print(f"least: {operations}\nbreaks: {still}")
            return 1
        seen += world.ledger.seen
        seed += 1
        if now - told >= PROGRESS_S:
            told = now
            print(f"{seed - given.seed} histories, {seen['completed']} requests completed", file=sys.stderr)
    print(f"{seed - given.seed} histories: {dict(seen)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
