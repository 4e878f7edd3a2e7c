"""The step pacer finds the cost of a step and keeps to the target latency."""

import random

import pytest

from policy.pacing import StepPacer


def simulate(
    pacer: StepPacer, steps: int, *, rows: int, base: float, per_row: float, per_token: float
) -> list[float]:
    """Step times when prompts are always waiting."""
    randomness = random.Random(3)
    times = []
    for _ in range(steps):
        decode_rows = randomness.randint(rows // 2, rows)
        tokens = pacer.prefill_budget(decode_rows)
        step_ms = (base + per_row * decode_rows + per_token * tokens) * randomness.gauss(1, 0.03)
        pacer.observe(decode_rows, tokens, step_ms)
        times.append(step_ms)
    return times


@pytest.mark.parametrize("per_token", [0.05, 0.35, 2.0])
def test_steps_come_close_to_the_target_and_rarely_above_it(per_token: float) -> None:
    pacer = StepPacer(100, max_tokens=4096)
    times = simulate(pacer, 600, rows=20, base=8, per_row=1.0, per_token=per_token)[100:]
    assert sum(times) / len(times) > 90
    assert sorted(times)[int(0.95 * len(times))] < 110


def test_a_machine_that_becomes_slower_is_noticed() -> None:
    pacer = StepPacer(100)
    simulate(pacer, 300, rows=20, base=8, per_row=1.0, per_token=0.3)
    times = simulate(pacer, 300, rows=20, base=16, per_row=2.0, per_token=0.6)
    assert sum(times[100:]) / 200 < 105


def test_prompts_progress_even_when_decodes_alone_exceed_the_target() -> None:
    pacer = StepPacer(20)
    simulate(pacer, 100, rows=32, base=30, per_row=1.0, per_token=0.5)
    assert pacer.prefill_budget(32) == 16


def test_a_prompt_alone_goes_faster_for_nobody_waits_for_the_next_token() -> None:
    pacer = StepPacer(100, max_tokens=4096)
    simulate(pacer, 300, rows=20, base=8, per_row=1.0, per_token=0.5)
    assert pacer.prefill_budget(0) > 3.5 * pacer.prefill_budget(1)
    assert 300 < pacer.predict_ms(0, pacer.prefill_budget(0)) < 440


def test_the_budget_is_bounded_when_prompts_cost_nothing() -> None:
    pacer = StepPacer(100, max_tokens=300)
    simulate(pacer, 200, rows=4, base=1, per_row=0.1, per_token=0.0)
    assert pacer.prefill_budget(4) == 300


def test_one_hiccup_changes_little_and_idle_times_do_not_wind_it_up() -> None:
    pacer = StepPacer(100)
    for _ in range(5000):
        pacer.observe(1, 0, 12.0)
    simulate(pacer, 300, rows=20, base=8, per_row=1.0, per_token=0.3)
    before = pacer.prefill_budget(10)
    pacer.observe(10, before, 5000.0)
    assert pacer.prefill_budget(10) > 0.5 * before
    simulate(pacer, 50, rows=20, base=8, per_row=1.0, per_token=0.3)
    assert abs(pacer.prefill_budget(10) - before) < 0.15 * before


def test_a_target_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="target_ms"):
        StepPacer(0)
