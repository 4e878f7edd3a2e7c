"""Random lives of a fleet while versions change: no token of other weights, no request lost, none run twice
visibly. Gateways, dispatcher and workers are the production ones.

A failure prints its seed and the least of its history that still breaks a rule; `make fuzz SUITE=dispatch`
goes on with further seeds.
"""

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.dispatch.fence.histories import least_broken, seed_run

SEEDS_A_BLOCK, BLOCKS = 200, 10
OCCURS = ("moved", "astray", "misplaced", "continued", "flipped", "completed")  # in every block


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    """Thousands of lost connections are no news."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_whatever_changes_and_breaks_every_token_is_of_the_weights_that_were_admitted(block: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(block * SEEDS_A_BLOCK, (block + 1) * SEEDS_A_BLOCK):
        world, rules = seed_run(seed)
        if rules:
            operations, still = least_broken(seed)
            pytest.fail(f"seed {seed}: {rules[:3]}\nleast: {operations}\nbreaks: {still[:3]}")
        seen += world.ledger.seen
    assert [what for what in OCCURS if not seen[what]] == [], "the rules were not put to the test"
