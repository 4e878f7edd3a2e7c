"""What a replica's step gives batch of the part it has for certain."""

import pytest

from policy.batch_floor import BATCH_PART, STEP_PART, BatchFloor


def test_a_step_gives_nothing_until_a_quantum_is_owed_and_then_all_of_it() -> None:
    floor = BatchFloor(BATCH_PART, quantum_us=5_000)
    floor.stepped(0.0, 40.0, is_wanted=True)
    assert floor.step_ms(100.0) == 0
    floor.stepped(0.0, 40.0, is_wanted=True)
    assert floor.step_ms(100.0) == pytest.approx(8)
    floor.stepped(8.0, 32.0, is_wanted=True)
    assert floor.step_ms(100.0) == pytest.approx(4)
    floor.stepped(8.0, 32.0, is_wanted=True)
    assert floor.step_ms(100.0) == 0


def test_a_step_gives_a_part_of_itself_at_most() -> None:
    floor = BatchFloor(BATCH_PART)
    floor.stepped(0.0, 1000.0, is_wanted=True)
    assert floor.step_ms(100.0) == 100 * STEP_PART


def test_while_nothing_is_wanted_nothing_is_owed() -> None:
    floor = BatchFloor(BATCH_PART)
    floor.stepped(0.0, 1000.0, is_wanted=False)
    assert floor.step_ms(100.0) == 0
