"""Random histories, by seed, and what is the least that still breaks a rule."""

from random import Random

from tests.dispatch.fence.rules import broken
from tests.dispatch.fence.world import Operations, World, lived

LENGTH = 14
PAUSES_S = (0.0, 0.05, 0.3, 0.8)
OPERATIONS = (
    *("submit", "submit", "submit", "burst", "flip", "look", "look", "look"),
    *("replace", "drain", "hang", "cut", "reset", "gateway_reset", "lie", "cancel", "dispatcher_restart"),
)


def operations_make(seed: int) -> Operations:
    random = Random(f"operations {seed}")
    return [(random.choice(PAUSES_S), random.choice(OPERATIONS)) for _ in range(LENGTH)]


def seed_run(seed: int) -> tuple[World, list[str]]:
    """The world at its end, and the rules it broke."""
    world = lived(seed, operations_make(seed))
    return world, broken(world)


def least_broken(seed: int) -> tuple[Operations, list[str]]:
    """Without the operations that it does not need, taken away one after the other."""
    operations = operations_make(seed)
    rules = broken(lived(seed, operations))
    for at in reversed(range(len(operations))):
        fewer = operations[:at] + operations[at + 1 :]
        if still := broken(lived(seed, fewer)):
            operations, rules = fewer, still
    return operations, rules
