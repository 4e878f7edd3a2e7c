"""Twenty things that an engine of this kind gets wrong: those that the client of a request sees.

The others are in `test_cases`.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuworker.engine.engine import Engine, Unservable
from gpuworker.engine.output import StepOutput
from gpuworker.engine.plan import Runner, StepPlan
from gpuworker.wire.messages import End, Sampling, Submit
from tests.engine.support import (
    CACHE,
    GATEWAY,
    ManualClock,
    PagedEchoRunner,
    RecordingRunner,
    byte_tokenizer,
    key,
    run_until_idle,
    submit_make,
    text_of,
)

RUNS = [b"DE", b"FG", b"HI"]  # tokens of two bytes
DE, FG, HI, EOS = range(256, 260)

EngineMaker = Callable[..., Engine]


@pytest.fixture
def make(tmp_path: Path) -> EngineMaker:
    path = tmp_path / "tokenizer.json"
    byte_tokenizer(*RUNS).save(str(path))

    def build(runner: Runner | None = None, *, blocks: int = 64, max_step_tokens: int = 64) -> Engine:
        return Engine(
            runner or PagedEchoRunner(vocab_size=260),
            path,
            blocks=blocks,
            max_rows=8,
            max_context_tokens=4096,
            pacer=None,
            eos_ids=frozenset({EOS}),
            cache=CACHE,
            max_step_tokens=max_step_tokens,
        )

    return build


def run(engine: Engine, submit: Submit) -> tuple[list[StepOutput], str, End]:
    """Alone, to its end."""
    engine.submit(key(submit.sid), submit, 0)
    outputs = run_until_idle(engine, ManualClock())
    (end,) = [end for output in outputs for frame in output.gateways.values() for end in frame.ends]
    return outputs, text_of(outputs, key(submit.sid)), end


def test_case_8_what_can_never_fit_is_refused(make: EngineMaker) -> None:
    engine = make(blocks=10)
    with pytest.raises(Unservable, match="160 tokens, 159 can be served"):
        engine.submit(key(1), submit_make(1, range(160)), 0)
    assert not engine.has_work()
    _, _, end = run(engine, submit_make(2, range(159), max_tokens=50))
    assert (end.reason, end.output_tokens) == ("length", 1)


def test_case_11_cancelled_in_the_middle_of_its_prompt_says_nothing(make: EngineMaker) -> None:
    engine, clock = make(max_step_tokens=16), ManualClock()
    engine.submit(key(1), submit_make(1, range(40)), 0)
    outputs = [engine.step(clock), engine.step(clock, lambda: engine.cancel(key(1), "cancelled"))]
    outputs += run_until_idle(engine, clock)
    assert text_of(outputs, key(1)) == ""
    assert all(not frame.sids for output in outputs for frame in output.gateways.values())
    (end,) = [end for output in outputs for frame in output.gateways.values() for end in frame.ends]
    assert (end.reason, end.output_tokens) == ("cancelled", 0)
    assert engine.stats().free_blocks == 64


def test_case_12_one_token_costs_one_step(make: EngineMaker) -> None:
    outputs, text, end = run(make(), submit_make(1, "hello", max_tokens=1))
    assert (len(outputs), text, end.reason, end.output_tokens) == (1, "h", "length", 1)


def test_case_13_an_ignored_end_token_is_a_token_like_any(make: EngineMaker) -> None:
    prompt = [*b"ab", EOS]
    _, text, end = run(make(), submit_make(1, prompt, max_tokens=7, ignore_eos=True))
    assert (text, end.reason, end.output_tokens) == ("ababa", "length", 7)
    _, text, end = run(make(), submit_make(2, prompt, max_tokens=7))
    assert (text, end.reason, end.output_tokens) == ("ab", "stop", 3)


def test_case_14_before_min_tokens_no_end_token_is_sampled(make: EngineMaker) -> None:
    runner = RecordingRunner(PagedEchoRunner(vocab_size=260))
    sampling = Sampling(temperature=0.0, min_tokens=5)
    prompt = [EOS, *b"abcd", EOS]
    _, _, end = run(make(runner), submit_make(1, prompt, max_tokens=20, sampling=sampling))
    assert runner.ids(key(1)) == [0, *b"abcd", EOS], "the runner's next choice, its own ones, then the end"
    assert (end.reason, end.output_tokens) == ("stop", 6)


def test_case_15_a_stop_string_over_four_tokens_is_not_shown_and_costs_no_step(make: EngineMaker) -> None:
    prompt = [*b"abc", DE, FG, HI, *b"Jkl"]
    outputs, text, end = run(make(), submit_make(1, prompt, max_tokens=50, stop=["DEFGHIJ"]))
    assert text == "abc"
    assert (end.reason, end.output_tokens, len(outputs)) == ("stop", 7, 7)


def test_case_16_a_character_of_four_tokens_is_one_delta(make: EngineMaker) -> None:
    outputs, text, _ = run(make(), submit_make(1, "a😀b", max_tokens=6))
    assert [output.gateways[GATEWAY].texts for output in outputs] == [["a"], [""], [""], [""], ["😀"], ["b"]]
    assert text == "a😀b"


@pytest.mark.parametrize("tokens", [0, 1, 2])
def test_case_20_a_step_that_raises_costs_the_offender_alone(make: EngineMaker, tokens: int) -> None:
    # Given a model that cannot bear what row 3 asks after so many tokens
    def refuse(plan: StepPlan) -> None:
        if any(row.key.sid == 3 and row.start >= tokens + bool(tokens) for row in plan.rows):
            raise ArithmeticError("row 3 divides by zero")

    engine, clock = make(RecordingRunner(PagedEchoRunner(), before=refuse)), ManualClock()
    for sid in range(6):
        engine.submit(key(sid), submit_make(sid, f"{sid}.", max_tokens=12), 0)
    # When it runs with five others
    outputs = run_until_idle(engine, clock)
    # Then it fails with a clear error, its mates are whole and so is the pool
    ended = {end.sid: end for output in outputs for end in output.gateways[GATEWAY].ends}
    assert (ended[3].reason, ended[3].output_tokens) == ("error", tokens)
    assert ended[3].message == "the model failed on this request (ArithmeticError)"
    for sid in (0, 1, 2, 4, 5):
        assert ended[sid].reason == "length"
        assert text_of(outputs, key(sid)) == f"{sid}." * 6
    assert engine.stats().free_blocks == 64
