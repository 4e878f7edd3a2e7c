"""Corners of the engine around transfers and moves between device and host."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuworker.engine.engine import Engine
from gpuworker.wire.messages import Sampling
from tests.engine.support import CACHE, ManualClock, PagedEchoRunner, key, submit_make, tokenizer_file

Make = Callable[..., Engine]
CLOCK = ManualClock()


@pytest.fixture
def make(tmp_path: Path) -> Make:
    path = tokenizer_file(tmp_path)

    def build(*, blocks: int = 64, **cache: object) -> Engine:
        return Engine(
            PagedEchoRunner(),
            path,
            blocks=blocks,
            max_rows=8,
            max_context_tokens=800,
            pacer=None,
            eos_ids=frozenset(),
            cache=dataclasses.replace(CACHE, **cache),  # type: ignore[arg-type]
        )

    return build


def run(engine: Engine) -> None:
    while engine.has_work():
        engine.step(CLOCK)
        engine.check_integrity()


def test_a_prompt_computed_for_another_replica_gives_no_output(make: Make) -> None:
    engine = make()
    sampling = Sampling(temperature=0.0, prompt_logprobs=0)
    engine.prefill(key(1), submit_make(1, "x" * 40, sampling=sampling), 0)
    output = engine.step(CLOCK)
    assert [row for row, _ in output.exports] == [key(1)]
    assert output.gateways == {}


def test_blocks_that_arrive_do_not_push_out_the_prefix_they_continue(make: Make) -> None:
    # Given what another replica computed of a prompt, and a pool full of cached blocks, of which those of the
    # prompt's beginning are the oldest
    prompt = [index % 250 for index in range(16 * 8 + 1)]
    there, here = make(), make(blocks=20)
    there.prefill(key(1), submit_make(1, prompt), 0)
    ((_, prefilled),) = there.step(CLOCK).exports
    here.submit(key(1), submit_make(1, prompt[:65], max_tokens=1), 0)
    run(here)
    here.submit(key(2), submit_make(2, [99] * 250, max_tokens=1), 0)
    run(here)
    assert here.stats().cached_blocks >= 19
    # When the rest arrives
    here.submit(key(3), submit_make(3, prompt, max_tokens=1), 0, prefilled)
    # Then nothing but the last token is left to compute
    here.step(CLOCK)
    assert here._kv.pool.cached_blocks >= 8
    assert here.stats().batch_rows == 1
    assert here.stats().cached_tokens == 64


def test_only_the_move_counts_as_the_cost_of_a_move(make: Make) -> None:
    # Given a clock by which planning a step takes a second, and everything else a millisecond
    class PlanningIsSlow:
        def __init__(self) -> None:
            self.ms, self.calls = 0.0, 0

        def step_begins(self) -> None:
            self.calls = 0

        def __call__(self) -> float:
            self.calls += 1
            self.ms += 1000.0 if self.calls == 2 else 1.0
            return self.ms

    clock = PlanningIsSlow()
    engine = make(blocks=6, host_blocks=8, recovery="swap")
    for sid in (1, 2):
        engine.submit(key(sid), submit_make(sid, "x" * 20, max_tokens=50, deadline_ms=10**9), 0)
    # When rows are moved to host memory and back
    while engine.has_work():
        engine.step(clock, clock.step_begins)
    # Then that seems cheap
    assert engine.stats().swaps > 0
    assert engine._recovery.block_ms < 2
