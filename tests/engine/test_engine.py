"""Behaviour of the whole engine on a scripted runner: counts, texts, ends, faults."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuworker.engine.engine import Engine, Unservable
from gpuworker.engine.output import StepOutput
from gpuworker.engine.plan import Runner, StepPlan
from gpuworker.engine.scripted_runner import ScriptedRunner
from gpuworker.wire.messages import End, RowKey, Sampling
from tests.engine.support import (
    CACHE,
    EOS,
    GATEWAY,
    ManualClock,
    PagedEchoRunner,
    RecordingRunner,
    key,
    run_until_idle,
    submit_make,
    text_of,
    tokenizer_file,
)

EngineMaker = Callable[..., Engine]


@pytest.fixture
def make(tmp_path: Path) -> EngineMaker:
    path = tokenizer_file(tmp_path)

    def build(
        runner: Runner | None = None,
        *,
        blocks: int = 64,
        max_rows: int = 8,
        eos: frozenset[int] = frozenset({EOS}),
    ) -> Engine:
        return Engine(
            runner or PagedEchoRunner(),
            path,
            blocks=blocks,
            max_rows=max_rows,
            max_context_tokens=400,
            pacer=None,
            eos_ids=eos,
            cache=CACHE,
        )

    return build


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def ends(outputs: list[StepOutput]) -> dict[int, End]:
    return {
        end.sid: end for output in outputs for columns in output.gateways.values() for end in columns.ends
    }


def test_many_rows_each_get_their_own_text(make: EngineMaker, clock: ManualClock) -> None:
    # Given more rows than slots, in a pool too small for all of them
    engine = make(blocks=20)
    for sid in range(30):
        engine.submit(key(sid), submit_make(sid, f"<row {sid}> ", max_tokens=40 + sid), 0)
    # When they have run
    outputs = run_until_idle(engine, clock)
    # Then everyone has the echo of its own prompt and exact counts, and nothing is held
    for sid in range(30):
        prompt = f"<row {sid}> "
        assert text_of(outputs, key(sid)) == (prompt * 20)[: 40 + sid]
        end = ends(outputs)[sid]
        assert (end.reason, end.prompt_tokens, end.output_tokens) == ("length", len(prompt), 40 + sid)
        assert end.cached_tokens == 0
    stats = engine.stats()
    assert stats.preemptions > 0
    assert (stats.running, stats.waiting, stats.free_blocks) == (0, 0, 20)
    assert stats.output_tokens == sum(40 + sid for sid in range(30))


def test_max_tokens_1_ends_on_the_prefill_step(make: EngineMaker, clock: ManualClock) -> None:
    engine = make()
    engine.submit(key(1), submit_make(1, "ab", max_tokens=1), 0)
    outputs = run_until_idle(engine, clock)
    assert len(outputs) == 1
    assert text_of(outputs, key(1)) == "a"
    assert (outputs[0].prefilled, outputs[0].ended) == ([key(1)], [key(1)])


def test_an_end_token_stops_the_row_is_counted_and_not_shown(make: EngineMaker, clock: ManualClock) -> None:
    engine = make()
    engine.submit(key(1), submit_make(1, [*b"ab", EOS], max_tokens=50), 0)
    outputs = run_until_idle(engine, clock)
    assert text_of(outputs, key(1)) == "ab"
    assert (ends(outputs)[1].reason, ends(outputs)[1].output_tokens) == ("stop", 3)


def test_ignore_eos_goes_on_counts_it_and_still_does_not_show_it(
    make: EngineMaker, clock: ManualClock
) -> None:
    engine = make()
    engine.submit(key(1), submit_make(1, [*b"ab", EOS], max_tokens=7, ignore_eos=True), 0)
    outputs = run_until_idle(engine, clock)
    assert text_of(outputs, key(1)) == "ababa"
    assert (ends(outputs)[1].reason, ends(outputs)[1].output_tokens) == ("length", 7)


def test_an_end_id_the_tokenizer_does_not_call_special_is_not_shown_either(
    make: EngineMaker, clock: ManualClock
) -> None:
    engine = make(eos=frozenset({ord("z")}))
    engine.submit(key(1), submit_make(1, "abz", max_tokens=6, ignore_eos=True), 0)
    assert text_of(run_until_idle(engine, clock), key(1)) == "abab"


def test_a_stop_string_over_several_tokens_is_never_shown_and_costs_no_step(
    make: EngineMaker, clock: ManualClock
) -> None:
    engine = make()
    engine.submit(key(1), submit_make(1, "abcDEFGHIJxyz", max_tokens=50, stop=["DEFGHIJ"]), 0)
    outputs = run_until_idle(engine, clock)
    assert text_of(outputs, key(1)) == "abc"
    assert len(outputs) == 10
    assert (ends(outputs)[1].reason, ends(outputs)[1].output_tokens) == ("stop", 10)


def test_a_stop_string_that_did_not_complete_is_shown_at_the_end(
    make: EngineMaker, clock: ManualClock
) -> None:
    engine = make()
    engine.submit(key(1), submit_make(1, "abcDEF", max_tokens=6, stop=["DEFGHIJ"]), 0)
    outputs = run_until_idle(engine, clock)
    assert text_of(outputs, key(1)) == "abcDEF"
    assert ends(outputs)[1].reason == "length"


def test_an_emoji_over_four_tokens_is_one_delta(make: EngineMaker, clock: ManualClock) -> None:
    engine = make()
    engine.submit(key(1), submit_make(1, "a😀b", max_tokens=6), 0)
    outputs = run_until_idle(engine, clock)
    assert [output.gateways[GATEWAY].texts[0] for output in outputs] == ["a", "", "", "", "😀", "b"]


def test_requests_that_can_never_run_are_refused(make: EngineMaker) -> None:
    engine = make(ScriptedRunner(vocab_size=257), blocks=4)
    assert engine.max_servable_tokens == 64
    refused = [
        submit_make(2, ""),
        submit_make(3, [257]),
        submit_make(4, "x", max_tokens=0),
        submit_make(5, "x", sampling=Sampling(temperature=-1.0)),
        submit_make(6, "x", sampling=Sampling(temperature=float("nan"))),
        submit_make(7, "x", sampling=Sampling(top_p=0.0)),
        submit_make(8, "x", sampling=Sampling(top_k=-1)),
    ]
    for submit in refused:
        with pytest.raises(Unservable) as caught:
            engine.submit(key(submit.sid), submit, 0)
        assert caught.value.code == "unservable"
    with pytest.raises(Unservable) as caught:
        engine.submit(key(1), submit_make(1, "x" * 64), 0)
    assert caught.value.code == "too_long"
    assert not engine.has_work()


def test_at_the_bound_a_request_runs_and_max_tokens_is_lowered_to_it(
    make: EngineMaker, clock: ManualClock
) -> None:
    engine = make(blocks=4)
    engine.submit(key(1), submit_make(1, "x" * 63, max_tokens=1000), 0)
    engine.submit(key(2), submit_make(2, "y" * 10, max_tokens=1000), 0)
    outputs = run_until_idle(engine, clock)
    assert {sid: end.output_tokens for sid, end in ends(outputs).items()} == {1: 1, 2: 54}


def test_a_row_known_already_is_refused_and_goes_on(make: EngineMaker, clock: ManualClock) -> None:
    engine = make()
    engine.submit(key(1), submit_make(1, "ab"), 0)
    with pytest.raises(Unservable):
        engine.submit(key(1), submit_make(1, "cd"), 0)
    assert text_of(run_until_idle(engine, clock), key(1)) == "abababab"


def test_cancelled_before_it_ran_costs_nothing(make: EngineMaker, clock: ManualClock) -> None:
    engine = make()
    engine.submit(key(1), submit_make(1, "ab"), 0)
    engine.cancel(key(1), "cancelled")
    outputs = run_until_idle(engine, clock)
    assert ends(outputs)[1].prompt_tokens == 0
    assert ends(outputs)[1].output_tokens == 0
    assert outputs[0].ended == [key(1)]


@pytest.mark.parametrize("chance", [1, 2], ids=["before the plan", "after the forward"])
def test_a_cancel_takes_effect_in_the_same_step(make: EngineMaker, clock: ManualClock, chance: int) -> None:
    # Given two running rows
    engine = make()
    for sid in (1, 2):
        engine.submit(key(sid), submit_make(sid, "ab", max_tokens=90), 0)
    engine.step(clock)
    calls = []

    def drain() -> None:
        calls.append(1)
        if len(calls) == chance:
            engine.cancel(key(1), "cancelled")
            engine.cancel(key(1), "cancelled")

    # When one is cancelled during a step
    output = engine.step(clock, drain)
    # Then this step shows only the other, says the end with exact counts, and the blocks are back
    columns = output.gateways[GATEWAY]
    assert columns.sids == [2]
    assert [(end.sid, end.reason, end.output_tokens) for end in columns.ends] == [(1, "cancelled", 1)]
    assert engine.stats().free_blocks == 63
    engine.check_integrity()
    engine.cancel(key(1), "cancelled")
    assert engine.step(clock).ended == []


def test_a_lost_gateway_ends_its_rows_only(make: EngineMaker, clock: ManualClock) -> None:
    engine = make()
    for gateway in ("aa", "bb"):
        for sid in (1, 2):
            engine.submit(RowKey(gateway, sid), submit_make(sid, "ab", max_tokens=9), 0)
    engine.step(clock)
    engine.cancel_gateway("aa", "gateway_lost")
    output = engine.step(clock)
    assert [end.reason for end in output.gateways["aa"].ends] == ["gateway_lost"] * 2
    assert output.gateways["bb"].sids == [1, 2]
    assert output.gateways["bb"].ends == []


def test_a_deadline_ends_running_and_waiting_rows(make: EngineMaker, clock: ManualClock) -> None:
    engine = make(max_rows=1)
    engine.submit(key(1), submit_make(1, "ab😀", max_tokens=90, deadline_ms=100), 0)
    engine.submit(key(2), submit_make(2, "ab", deadline_ms=100), 0)
    outputs = []
    for clock.ms in (0.0, 30.0, 60.0, 99.0, 100.0):
        outputs.append(engine.step(clock))
    assert {sid: end.reason for sid, end in ends(outputs).items()} == {1: "deadline", 2: "deadline"}
    assert ends(outputs)[1].output_tokens == 4
    assert (ends(outputs)[2].prompt_tokens, ends(outputs)[2].queue_ms) == (0, 100)
    # Half a character is not shown
    assert text_of(outputs, key(1)) == "ab"
    assert not engine.has_work()


def test_stage_times_add_up(make: EngineMaker, clock: ManualClock) -> None:
    engine = make(max_rows=1)

    def tick(plan: StepPlan) -> None:
        clock.ms += 10

    slow = RecordingRunner(PagedEchoRunner(), before=tick)
    engine = make(slow, max_rows=1)
    engine.submit(key(1), submit_make(1, "ab", max_tokens=3), 0)
    engine.submit(key(2), submit_make(2, "ab", max_tokens=4), 5)
    end = ends(run_until_idle(engine, clock))[2]
    assert (end.queue_ms, end.prefill_ms, end.decode_ms) == (25, 10, 30)


def test_checkpoints_come_at_the_start_every_64_tokens_and_at_the_end(
    make: EngineMaker, clock: ManualClock
) -> None:
    engine = make()
    engine.submit(key(1), submit_make(1, "ab", max_tokens=130), 0)
    outputs = run_until_idle(engine, clock)
    seen = [
        (output.step, point.prompt_tokens, point.output_tokens, point.reason)
        for output in outputs
        for point in output.checkpoints
    ]
    assert seen == [(1, 2, 1, ""), (64, 2, 64, ""), (128, 2, 128, ""), (130, 2, 130, "length")]


def test_a_row_that_raises_fails_alone(make: EngineMaker, clock: ManualClock) -> None:
    # Given a runner that cannot bear one of six rows
    def refuse(plan: StepPlan) -> None:
        if any(row.key.sid == 3 and row.start > 2 for row in plan.rows):
            raise ArithmeticError("row 3 divides by zero")

    engine = make(RecordingRunner(PagedEchoRunner(), before=refuse))
    for sid in range(6):
        engine.submit(key(sid), submit_make(sid, f"{sid}.", max_tokens=12), 0)
    # When they run
    outputs = run_until_idle(engine, clock)
    # Then it ends with a clear error after the token it had, and its mates are whole
    end = ends(outputs)[3]
    assert (end.reason, end.output_tokens) == ("error", 2)
    assert end.message == "the model failed on this request (ArithmeticError)"  # the rest is for the log
    for sid in (0, 1, 2, 4, 5):
        assert text_of(outputs, key(sid)) == f"{sid}." * 6
    assert engine.stats().free_blocks == 64


def test_the_scripted_runner_echoes_the_prompt(make: EngineMaker, clock: ManualClock) -> None:
    engine = make(ScriptedRunner())
    engine.submit(key(1), submit_make(1, "hello ", max_tokens=15), 0)
    assert text_of(run_until_idle(engine, clock), key(1)) == "hello hello hel"


def test_the_engine_with_a_scripted_runner_imports_no_torch() -> None:
    code = (
        "import sys; import gpuworker.engine.engine, gpuworker.engine.scripted_runner; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
