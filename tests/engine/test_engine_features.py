"""What a request may ask for besides text: choices, echo, logprobs, grammars; prefixes and transfers."""

import dataclasses
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuworker.engine.engine import Engine, Unservable
from gpuworker.engine.output import StepOutput
from gpuworker.engine.plan import Runner
from gpuworker.engine.scripted_runner import ScriptedRunner
from gpuworker.wire.messages import ChoiceEnd, End, Grammar, Sampling, Submit
from tests.engine.support import (
    CACHE,
    EOS,
    GATEWAY,
    ManualClock,
    PagedEchoRunner,
    key,
    run_until_idle,
    submit_make,
    text_of,
    tokenizer_file,
)

Make = Callable[..., Engine]
CLOCK = ManualClock()


@pytest.fixture
def make(tmp_path: Path) -> Make:
    path = tokenizer_file(tmp_path)

    def build(runner: Runner | None = None, *, blocks: int = 64, **cache: object) -> Engine:
        return Engine(
            runner or PagedEchoRunner(),
            path,
            blocks=blocks,
            max_rows=8,
            max_context_tokens=800,
            pacer=None,
            eos_ids=frozenset({EOS}),
            cache=dataclasses.replace(CACHE, **cache),  # type: ignore[arg-type]
        )

    return build


def run(engine: Engine) -> list[StepOutput]:
    return run_until_idle(engine, CLOCK)


def end_of(outputs: list[StepOutput], sid: int) -> End:
    columns = [output.gateways[GATEWAY] for output in outputs if GATEWAY in output.gateways]
    found = [end for part in columns for end in part.ends if end.sid == sid]
    assert len(found) == 1
    return found[0]


def test_choices_have_their_own_columns_and_one_end_counts_them_all(make: Make) -> None:
    engine = make()
    engine.submit(key(1), submit_make(1, "hello, you! ", max_tokens=20, n=3), 0)
    engine.submit(key(2), submit_make(2, "ab", max_tokens=4), 0)
    outputs = run(engine)
    for choice in range(3):
        assert text_of(outputs, key(1), choice) == "hello, you! hello, y"
    assert text_of(outputs, key(2)) == "abab"
    ends = [end for output in outputs for end in output.gateways[GATEWAY].choice_ends]
    assert sorted(ends, key=lambda end: end.choice) == [
        ChoiceEnd(sid=1, choice=choice, reason="length", output_tokens=20) for choice in range(3)
    ]
    end = end_of(outputs, 1)
    assert (end.reason, end.prompt_tokens, end.output_tokens) == ("length", 12, 60)
    points = [point for output in outputs for point in output.checkpoints if point.row.sid == 1]
    assert [(point.output_tokens, point.reason) for point in points] == [(1, ""), (60, "length")]
    assert outputs[-1].ended == [key(1)]


def test_cancelling_a_request_ends_all_its_choices_at_once(make: Make) -> None:
    engine = make()
    engine.submit(key(1), submit_make(1, "abc", max_tokens=50, n=4), 0)
    for _ in range(3):
        engine.step(CLOCK)
    engine.cancel(key(1), "cancelled")
    output = engine.step(CLOCK)
    columns = output.gateways[GATEWAY]
    assert [end.reason for end in columns.choice_ends] == ["cancelled"] * 4
    assert [(end.reason, end.output_tokens) for end in columns.ends] == [("cancelled", 3 + 3 * 2)]
    assert not engine.has_work()
    assert engine.stats().free_blocks == 64


def test_frames_of_single_choices_without_logprobs_carry_no_further_columns(make: Make) -> None:
    engine = make()
    engine.submit(key(1), submit_make(1, "ab", max_tokens=4), 0)
    for output in run(engine):
        columns = output.gateways[GATEWAY]
        assert (columns.choices, columns.logprobs, columns.prompts, columns.choice_ends) == ([], [], [], [])


def test_logprobs_go_with_their_tokens_and_those_of_the_prompt_come_once(make: Make) -> None:
    # Given a row that will be preempted, so that its prompt is computed twice
    engine = make(blocks=8, recovery="recompute", is_shared=False)
    wanted = Sampling(temperature=0.0, logprobs=1, prompt_logprobs=0)
    engine.submit(key(0), submit_make(0, "x" * 40, max_tokens=80), 0)
    engine.submit(key(1), submit_make(1, "abcd" * 5, max_tokens=60, sampling=wanted), 0)
    outputs = run(engine)
    assert engine.stats().preemptions > 0
    # Then every token has its logprobs, and every prompt token but the first
    told: list[int] = []
    prompt: list[int] = []
    for output in outputs:
        columns = output.gateways[GATEWAY]
        for at, sid in enumerate(columns.sids):
            if sid == 1 and columns.counts[at]:
                told += [entry.token for entry in columns.logprobs[at]]
            elif columns.logprobs:
                assert columns.logprobs[at] == []
        for part in columns.prompts:
            assert part.first == 1 + len(prompt)
            prompt += [entry.token for entry in part.tokens]
    assert told == list(b"abcd" * 15)
    assert prompt == list(b"abcd" * 5)[1:]


def test_echo_begins_with_the_prompt_and_may_be_all(make: Make) -> None:
    engine = make()
    engine.submit(key(1), submit_make(1, "né ", max_tokens=8, echo=True), 0)
    engine.submit(key(2), submit_make(2, "only this", max_tokens=0, echo=True), 0)
    engine.submit(key(3), submit_make(3, "two", max_tokens=3, echo=True, n=2), 0)
    engine.submit(key(4), submit_make(4, "score", max_tokens=0, sampling=Sampling(prompt_logprobs=0)), 0)
    outputs = run(engine)
    assert text_of(outputs, key(1)) == "né né né "
    assert text_of(outputs, key(2)) == "only this"
    assert [text_of(outputs, key(3), choice) for choice in (0, 1)] == ["twotwo"] * 2
    for sid in (2, 4):
        end = end_of(outputs, sid)
        assert (end.reason, end.output_tokens) == ("length", 0)
        assert end.prompt_tokens > 0


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5, 6])
def test_a_character_that_is_cut_is_not_shown(make: Make, max_tokens: int) -> None:
    engine = make()
    engine.submit(key(1), submit_make(1, "😀a", max_tokens=max_tokens), 0)
    engine.submit(key(2), submit_make(2, [*"é".encode()[:1], EOS], max_tokens=max_tokens + 1), 0)
    outputs = run(engine)
    whole = "😀a😀a".encode()[:max_tokens].decode(errors="ignore")
    assert text_of(outputs, key(1)) == whole
    # What the model ended with is its own
    assert text_of(outputs, key(2)) == "\ufffd"


def test_min_tokens_keeps_end_tokens_and_stop_strings_away(make: Make) -> None:
    engine = make(PagedEchoRunner(vocab_size=257))
    late = Sampling(temperature=0.0, min_tokens=5)
    engine.submit(key(1), submit_make(1, [EOS, *b"ab"], max_tokens=20, sampling=late), 0)
    engine.submit(key(2), submit_make(2, "xyz", max_tokens=20, sampling=late, stop=["y"]), 0)
    outputs = run(engine)
    assert end_of(outputs, 1).output_tokens > 5
    assert text_of(outputs, key(2)) == "xyzx"


def test_a_stop_id_of_the_request_ends_it_also_with_ignore_eos(make: Make) -> None:
    engine = make()
    submit = submit_make(1, [*b"ab", EOS, *b"c"], max_tokens=20, ignore_eos=True, stop_ids=[ord("c"), EOS])
    engine.submit(key(1), submit, 0)
    outputs = run(engine)
    assert text_of(outputs, key(1)) == "ab"
    assert (end_of(outputs, 1).reason, end_of(outputs, 1).output_tokens) == ("stop", 4)


# -- grammars -----------------------------------------------------------------------------------------------


def run_with_grammar(engine: Engine, submit: Submit) -> list[StepOutput]:
    """One row at first held up by its grammar; what else there is runs meanwhile."""
    ready = threading.Event()
    engine.wake = ready.set
    engine.submit(key(submit.sid), submit, 0)
    outputs = run(engine)
    assert ready.wait(20)
    return [*outputs, engine.step(CLOCK), *run(engine)]


@pytest.mark.parametrize("n", [1, 2])
def test_a_grammar_shapes_the_text_and_others_do_not_wait_for_it(make: Make, n: int) -> None:
    engine = make(PagedEchoRunner(vocab_size=257))
    grammar = Grammar(kind="choice", text=json.dumps(["yes", "no"]))
    engine.submit(key(2), submit_make(2, "ab", max_tokens=2), 0)
    outputs = run_with_grammar(engine, submit_make(1, "yellow", max_tokens=20, grammar=grammar, n=n))
    assert 2 in outputs[0].gateways[GATEWAY].sids
    for choice in range(n):
        assert text_of(outputs, key(1), choice) in ("yes", "no")
    assert end_of(outputs, 1).reason == "stop"


def test_an_end_says_which_stop_it_was(make: Make) -> None:
    engine = make(PagedEchoRunner(vocab_size=257))
    engine.submit(key(1), submit_make(1, "one, two. ", max_tokens=20, stop=["two", ", tw", "w"]), 0)
    engine.submit(key(2), submit_make(2, [*b"ab", EOS], max_tokens=20), 0)
    engine.submit(key(3), submit_make(3, "abc", max_tokens=20, stop_ids=[ord("c")]), 0)
    engine.submit(key(4), submit_make(4, "abc", max_tokens=3, stop=["x"], n=2), 0)
    engine.submit(key(5), submit_make(5, "abc", max_tokens=20, stop=["b"], n=2), 0)
    grammar = Grammar(kind="regex", text="abab")
    outputs = run_with_grammar(engine, submit_make(6, "ab", max_tokens=20, grammar=grammar))
    said = {sid: (end_of(outputs, sid).reason, end_of(outputs, sid).stopped_by) for sid in range(1, 7)}
    assert said == {
        1: ("stop", ", tw"),
        2: ("stop", EOS),
        3: ("stop", ord("c")),
        4: ("length", None),
        5: ("stop", "b"),
        6: ("stop", None),
    }
    columns = [output.gateways[GATEWAY] for output in outputs if GATEWAY in output.gateways]
    ends = [end for part in columns for end in part.choice_ends]
    assert {(end.sid, end.choice, end.stopped_by) for end in ends} == {
        (4, 0, None), (4, 1, None), (5, 0, "b"), (5, 1, "b"),
    }  # fmt: skip


def test_a_grammar_cut_by_max_tokens_says_length(make: Make) -> None:
    engine = make(PagedEchoRunner(vocab_size=257))
    grammar = Grammar(kind="regex", text="[a-z]{40}")
    outputs = run_with_grammar(engine, submit_make(1, "ab", max_tokens=5, grammar=grammar))
    assert text_of(outputs, key(1)) == "ababa"
    assert end_of(outputs, 1).reason == "length"


def test_a_bad_grammar_refuses_the_request_and_nothing_is_held(make: Make) -> None:
    engine = make(PagedEchoRunner(vocab_size=257))
    outputs = run_with_grammar(engine, submit_make(1, "ab", grammar=Grammar(kind="regex", text="(")))
    refused = [entry for output in outputs for entry in output.refused]
    assert [(row, code) for row, code, _ in refused] == [(key(1), "invalid_grammar")]
    assert refused[0][2]
    assert all(not output.gateways and not output.ended for output in outputs)
    assert not engine.has_work()
    engine.submit(key(1), submit_make(1, "ab", max_tokens=2), 0)
    assert text_of(run(engine), key(1)) == "ab"


def test_cancelled_while_its_grammar_is_compiled(make: Make) -> None:
    engine = make(PagedEchoRunner(vocab_size=257))
    engine.submit(key(1), submit_make(1, "ab", grammar=Grammar(kind="regex", text="[ab]+")), 0)
    engine.cancel(key(1), "cancelled")
    assert end_of(run(engine), 1).reason == "cancelled"
    assert not engine.has_work()


# -- prefixes -----------------------------------------------------------------------------------------------


def test_a_prompt_seen_before_is_not_computed_again(make: Make) -> None:
    engine = make()
    prompt = "The quick brown fox jumps over the lazy dog."
    engine.submit(key(1), submit_make(1, prompt, max_tokens=30), 0)
    run(engine)
    others = {
        2: submit_make(2, prompt, max_tokens=30),
        3: submit_make(3, prompt, max_tokens=30, tenant="another"),
        4: submit_make(4, prompt, max_tokens=30, cache_salt="user 7"),
        5: submit_make(5, prompt, max_tokens=30, sampling=Sampling(temperature=0, prompt_logprobs=0)),
    }
    for sid, submit in others.items():
        engine.submit(key(sid), submit, 0)
    outputs = run(engine)
    assert {sid: end_of(outputs, sid).cached_tokens for sid in others} == {2: 32, 3: 0, 4: 0, 5: 0}
    assert {text_of(outputs, key(sid)) for sid in others} == {(prompt * 2)[:30]}
    assert engine.stats().cached_tokens == 32
    assert engine.stats().prompt_tokens == 5 * len(prompt)


def test_a_conversation_finds_its_own_answer(make: Make) -> None:
    engine = make()
    first = "x" * 20 + "y" * 20
    engine.submit(key(1), submit_make(1, first, max_tokens=60), 0)
    answer = text_of(run(engine), key(1))
    engine.submit(key(2), submit_make(2, first + answer + "and?", max_tokens=2), 0)
    assert end_of(run(engine), 2).cached_tokens == 96


def test_the_router_hears_of_prefixes_that_come_and_go(make: Make) -> None:
    engine = make(blocks=16)
    engine.submit(key(1), submit_make(1, "a" * 130, max_tokens=2), 0)
    run(engine)
    added = engine.take_cache_events().added
    assert len(added) == 2
    engine.submit(key(2), submit_make(2, "b" * 240, max_tokens=2), 0)
    run(engine)
    assert set(added) & set(engine.take_cache_events().evicted)


# -- transfers ----------------------------------------------------------------------------------------------


def test_a_prompt_computed_elsewhere_gives_the_same_text_and_is_not_called_cached(make: Make) -> None:
    # Given a replica that computes a prompt
    prompt = "".join(map(chr, range(40, 120)))
    there, here = make(), make()
    there.prefill(key(1), submit_make(1, prompt, max_tokens=50, n=2), 0)
    outputs = run(there)
    ((row, prefilled),) = [export for output in outputs for export in output.exports]
    assert row == key(1)
    assert prefilled is not None
    assert len(prefilled.blocks) == len(prefilled.keys) == 5
    assert all(not output.gateways and not output.checkpoints for output in outputs)
    assert there.stats().free_blocks == 64
    # When another is given its blocks
    here.submit(key(1), submit_make(1, prompt, max_tokens=50, n=2), 0, prefilled)
    outputs = [here.step(CLOCK)]
    # Then it computes only the last block, and says so
    assert here.stats().pending_prefill_tokens == 0
    outputs += run(here)
    assert text_of(outputs, key(1)) == text_of(outputs, key(1), 1) == prompt[:50]
    assert end_of(outputs, 1).cached_tokens == 0
    # And what the first had found cached is called so
    there.prefill(key(2), submit_make(2, prompt), 0)
    ((_, again),) = [export for output in run(there) for export in output.exports]
    assert again is not None
    third = make()
    third.submit(key(2), submit_make(2, prompt), 0, again)
    assert end_of(run(third), 2).cached_tokens == 64


def test_blocks_of_another_tenant_or_no_use_are_ignored(make: Make) -> None:
    prompt = "".join(map(chr, range(40, 120)))
    there = make()
    there.prefill(key(1), submit_make(1, prompt, tenant="another"), 0)
    ((_, prefilled),) = [export for output in run(there) for export in output.exports]
    assert prefilled is not None
    own = submit_make(1, prompt, max_tokens=50)
    for broken in (
        prefilled,
        dataclasses.replace(prefilled, blocks=[block[:-1] for block in prefilled.blocks]),
        dataclasses.replace(prefilled, blocks=[]),
    ):
        here = make()
        here.submit(key(1), own, 0, broken)
        outputs = run(here)
        assert text_of(outputs, key(1)) == prompt[:50]
        assert here.stats().cached_tokens == 0
        assert here.stats().free_blocks == 64


def test_a_transfer_that_was_cancelled_gives_nothing(make: Make) -> None:
    engine = make()
    engine.prefill(key(1), submit_make(1, "x" * 600), 0)
    engine.step(CLOCK)
    engine.cancel(key(1), "cancelled")
    outputs = run(engine)
    assert [export for output in outputs for export in output.exports] == [(key(1), None)]
    assert engine.stats().free_blocks == 64


# -- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"n": 0}, "n is 0"),
        ({"n": 1000}, "n is 1000"),
        ({"weight": 0.0}, "weight"),
        ({"weight": float("nan")}, "weight"),
        ({"max_tokens": -1, "echo": True}, "max_tokens"),
        ({"stop_ids": [257]}, "stop token id"),
        ({"stop": ["x"] * 1000}, "stop"),
        (
            {"grammar": Grammar(kind="regex", text="a"), "sampling": Sampling(min_tokens=1)},
            "min_tokens",
        ),
        ({"sampling": Sampling(logit_bias=[(300, 1.0)])}, "logit_bias"),
    ],
)
def test_what_cannot_be_served_is_named(make: Make, changes: dict[str, object], problem: str) -> None:
    engine = make(ScriptedRunner(vocab_size=257))
    with pytest.raises(Unservable, match=problem):
        engine.submit(key(1), submit_make(1, "x", **changes), 0)  # type: ignore[arg-type]
    assert not engine.has_work()
