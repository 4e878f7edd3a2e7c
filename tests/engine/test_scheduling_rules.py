"""Who gives way, who is served how much, and that what is done to a request is done to all its choices."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuworker.engine.engine import Engine
from gpuworker.wire.messages import End, Sampling, Submit
from tests.engine.scheduler_bench import Bench
from tests.engine.support import (
    CACHE,
    EOS,
    ManualClock,
    PagedEchoRunner,
    key,
    run_until_idle,
    submit_make,
    text_of,
    tokenizer_file,
)

# -- victims and shares -----------------------------------------------------------------------------------


def step_until_preemption(bench: Bench) -> None:
    for _ in range(500):
        if bench.scheduler.preemptions:
            return
        bench.step()
    raise AssertionError("nobody gave way")


def test_the_most_served_gives_way_for_the_growth_of_the_least_served() -> None:
    # Given a full pool: two rows of one tenant, and a row of another that was served less
    bench = Bench(blocks=7)
    much = [bench.submit(sid, 30, tenant="much", max_tokens=60) for sid in (1, 2)]
    bench.step()
    little = bench.submit(3, 6, tenant="little", max_tokens=60)
    # When that row needs a block
    step_until_preemption(bench)
    # Then the newest of the other tenant pays, not the newest of all
    assert little.num_computed == 17
    assert [row.preemptions for row in (*much, little)] == [0, 1, 0]


def test_a_row_that_the_step_holds_already_does_not_give_way() -> None:
    # Given rows of two tenants that were served alike, and one block left when both need one
    bench = Bench(blocks=7)
    first, second = (bench.submit(sid, 30, max_tokens=40, tenant=f"tenant {sid}") for sid in (1, 2))
    # When the first has it, its tenant is ahead for the rest of the step
    step_until_preemption(bench)
    # Then the second gives way all the same
    assert [row.preemptions for row in (first, second)] == [0, 1]
    bench.run_to_the_end()
    assert bench.outputs == {sid: [1000 * sid + at % 30 for at in range(40)] for sid in (1, 2)}


def test_a_held_row_gives_way_before_rows_that_run() -> None:
    # Given a full pool, and a row of the least served tenant whose client does not keep up
    bench = Bench(blocks=7)
    running = [bench.submit(sid, 20 + sid, tenant="much", max_tokens=60) for sid in (1, 9)]
    bench.step()
    held = bench.submit(3, 6, tenant="little", max_tokens=60)
    bench.step()
    bench.scheduler.hold(held.key, True)
    # When a running row needs a block
    step_until_preemption(bench)
    assert [row.preemptions for row in (*running, held)] == [0, 0, 1]


@pytest.mark.parametrize("reason", ["cancelled", "deadline"])
def test_a_row_that_ends_in_host_memory_leaves_nothing_there(reason: str) -> None:
    bench = Bench(blocks=6, host_blocks=4, recovery="swap")
    bench.submit(1, 40, max_tokens=50)
    young = bench.submit(2, 16, max_tokens=50)
    step_until_preemption(bench)
    assert young.host_blocks
    bench.scheduler.cancel(young.key, reason)
    assert bench.kv.host is not None
    assert bench.kv.host.free_blocks == 4
    bench.run_to_the_end()


def test_three_times_the_weight_is_three_times_the_work() -> None:
    bench = Bench(blocks=200, max_rows=4)
    for sid in range(100):
        bench.submit(sid, 16, max_tokens=4, tenant="light", weight=1.0)
        bench.submit(100 + sid, 16, max_tokens=4, tenant="heavy", weight=3.0)
    for _ in range(80):
        bench.step()
    light, heavy = (sum(sid // 100 == tenant for sid in bench.outputs) for tenant in (0, 1))
    assert light > 10
    assert 2.5 <= heavy / light <= 3.5


# -- a request and its choices ----------------------------------------------------------------------------


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(
        PagedEchoRunner(),
        tokenizer_file(tmp_path),
        blocks=32,
        max_rows=8,
        max_context_tokens=400,
        pacer=None,
        eos_ids=frozenset({EOS}),
        cache=CACHE,
    )


def cached_tokens(engine: Engine, submit: Submit) -> int:
    engine.submit(key(submit.sid), submit, 0)
    outputs = run_until_idle(engine, ManualClock())
    ends: list[End] = [end for output in outputs for frame in output.gateways.values() for end in frame.ends]
    return ends[0].cached_tokens


def test_every_choice_has_its_own_copy_of_a_block_that_is_not_full(engine: Engine) -> None:
    engine.submit(key(1), submit_make(1, "hello w", n=3, max_tokens=9), 0)
    outputs = run_until_idle(engine, ManualClock())
    assert [text_of(outputs, key(1), choice) for choice in range(3)] == ["hello whe"] * 3


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_cancel_ends_every_choice(engine: Engine, steps: int) -> None:
    clock = ManualClock()
    engine.submit(key(1), submit_make(1, "hello", n=3, max_tokens=100), 0)
    for _ in range(steps):
        engine.step(clock)
    engine.cancel(key(1), "cancelled")
    output = engine.step(clock)
    assert [end.reason for frame in output.gateways.values() for end in frame.ends] == ["cancelled"]
    assert not engine.has_work()
    assert engine.stats().free_blocks == 32


def test_a_request_that_is_held_computes_nothing_for_any_choice(engine: Engine) -> None:
    clock = ManualClock()
    engine.submit(key(1), submit_make(1, "hello", n=3, max_tokens=20), 0)
    outputs = [engine.step(clock) for _ in range(3)]
    engine.hold(key(1), True)
    assert not engine.has_work()
    assert not engine.step(clock).gateways
    engine.hold(key(1), False)
    outputs += run_until_idle(engine, clock)
    assert [text_of(outputs, key(1), choice) for choice in range(3)] == ["hello" * 4] * 3


def test_prompt_logprobs_are_told_once_whatever_is_cached_or_computed_again(engine: Engine) -> None:
    # Given cached prefixes, and more rows than the pool holds as they grow
    assert cached_tokens(engine, submit_make(0, "x" * 40)) == 0
    for sid in range(1, 7):
        sampling = Sampling(temperature=0.0, prompt_logprobs=0)
        engine.submit(key(sid), submit_make(sid, "x" * 40, max_tokens=90, sampling=sampling), 0)
    outputs = run_until_idle(engine, ManualClock())
    # Then each row tells of every prompt token but the first, in order, once
    assert engine.stats().preemptions > 0
    told: dict[int, list[int]] = {}
    for frame in (frame for output in outputs for frame in output.gateways.values()):
        for entry in frame.prompts:
            told.setdefault(entry.sid, []).extend(range(entry.first, entry.first + len(entry.tokens)))
    assert told == {sid: list(range(1, 40)) for sid in range(1, 7)}


Change = Callable[[int], Submit]


@pytest.mark.parametrize(
    ("second", "tokens"),
    [
        pytest.param(lambda sid: submit_make(sid, "x" * 40), 32, id="same"),
        pytest.param(lambda sid: submit_make(sid, "x" * 40, tenant="other"), 0, id="other tenant"),
        pytest.param(lambda sid: submit_make(sid, "x" * 40, cache_salt="mine"), 0, id="other salt"),
    ],
)
def test_a_prefix_is_shared_within_a_tenant_and_a_salt(engine: Engine, second: Change, tokens: int) -> None:
    assert cached_tokens(engine, submit_make(1, "x" * 40)) == 0
    assert cached_tokens(engine, second(2)) == tokens
    assert cached_tokens(engine, second(3)) == 32
