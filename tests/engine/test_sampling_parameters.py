"""Penalties, bias, stop ids and masks change logits as plain references do, for the rows that ask only."""

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from gpuworker.engine.logits_processors import NothingToSample, process_logits
from gpuworker.engine.plan import PlanRow, RowStart, SequenceKey
from gpuworker.wire.messages import Sampling
from tests.engine.sampling_rows import Row, by_definition, masks_of, state_make, tokens

VOCABULARY = 50
PLAIN = Sampling(temperature=0.0)
IDS = st.lists(st.integers(0, VOCABULARY - 1), max_size=40)


def processed(rows: list[Row]) -> Tensor:
    logits = torch.stack([row.logits for row in rows])
    slots = np.arange(len(rows))
    lengths = np.array([len(row.prompt) + len(row.output) for row in rows])
    process_logits(logits, state_make(rows, range(len(rows))), slots, lengths, masks_of(rows, slots.tolist()))
    return logits


@st.composite
def asking_rows(draw: st.DrawFn) -> Row:
    sampling = Sampling(
        repetition_penalty=draw(st.sampled_from([1.0, 0.5, 1.2, 10.0])),
        presence_penalty=draw(st.sampled_from([0.0, -2.0, 0.7])),
        frequency_penalty=draw(st.sampled_from([0.0, 2.0, -0.3])),
        logit_bias=draw(
            st.lists(
                st.tuples(st.integers(0, VOCABULARY - 1), st.floats(-100, 100, width=32)),
                max_size=10,
                unique_by=lambda entry: entry[0],
            )
        ),
        min_tokens=draw(st.sampled_from([0, 1, 20])),
    )
    return Row(
        torch.tensor(draw(st.lists(st.floats(-20, 20, width=32), min_size=VOCABULARY, max_size=VOCABULARY))),
        sampling,
        prompt=[3, *draw(IDS)],
        output=draw(IDS),
        stop_ids=draw(st.sampled_from([[], [2], [4, 49, 7]])),
        # Bit 6 is always set, so that something is left to sample
        mask=draw(st.none() | st.binary(min_size=0, max_size=12).map(lambda rest: b"\x40" + rest)),
    )


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(asking_rows(), min_size=1, max_size=5))
def test_all_together_are_what_the_definitions_say(rows: list[Row]) -> None:
    logits = processed(rows)
    for row, actual in zip(rows, logits, strict=True):
        torch.testing.assert_close(actual, by_definition(row), atol=1e-4, rtol=1e-5)


def test_a_row_that_asks_for_nothing_keeps_its_logits_beside_one_that_asks() -> None:
    logits = torch.linspace(-3, 3, VOCABULARY)
    sampling = Sampling(
        repetition_penalty=2.0, presence_penalty=1.0, logit_bias=[(1, 9.0)], min_tokens=9, temperature=0.0
    )
    asking = Row(logits, sampling, prompt=[5, 6], output=[7, 8], stop_ids=[2], mask=b"\xff" * 4)
    plain = Row(logits, PLAIN, prompt=[5, 6], output=[7, 8], stop_ids=[2])
    actual = processed([plain, asking, plain])
    assert torch.equal(actual[0], logits)
    assert torch.equal(actual[2], logits)
    assert int((actual[1] != logits).sum()) > 20


def greedy(logits: list[float], *, output: list[int], stop_ids: list[int] = [], **options: Any) -> int:  # noqa: B006
    sampling = Sampling(temperature=0.0, **options)
    row = Row(torch.tensor(logits), sampling, prompt=[0], output=output, stop_ids=stop_ids)
    return tokens([row])[0]


def test_greedy_rows_are_changed_too() -> None:
    logits = [0.0, 3.0, 2.9, 2.0]
    assert greedy(logits, output=[]) == 1
    assert greedy(logits, output=[1], presence_penalty=0.2) == 2
    assert greedy(logits, output=[1, 1, 2], frequency_penalty=0.2) == 2
    assert greedy(logits, output=[1, 2], repetition_penalty=1.6) == 3
    assert greedy(logits, output=[], logit_bias=[(3, 1.5)]) == 3


def test_the_prompt_counts_for_repetition_but_not_for_presence_and_frequency() -> None:
    logits = torch.tensor([0.0, 3.0, 2.0])
    strict = Sampling(temperature=0.0, presence_penalty=2.0, frequency_penalty=2.0)
    assert tokens([Row(logits, strict, prompt=[1, 1, 1])]) == [1]
    assert tokens([Row(logits, Sampling(temperature=0.0, repetition_penalty=2.0), prompt=[1])]) == [2]


def test_min_tokens_masks_the_stop_id_so_that_it_never_appears() -> None:
    # Given logits that always prefer the stop id, then token 2
    logits = [0.0, 5.0, 4.0, 1.0]
    output: list[int] = []
    for _ in range(7):
        output.append(greedy(logits, output=output, stop_ids=[1], min_tokens=5))
    # Then the first five are others
    assert output == [2, 2, 2, 2, 2, 1, 1]


def test_min_tokens_holds_for_draws_of_any_temperature() -> None:
    sampling = Sampling(temperature=100.0, min_tokens=1)
    rows = [
        Row(torch.zeros(4), msgspec.structs.replace(sampling, seed=seed), stop_ids=[0, 3])
        for seed in range(200)
    ]
    assert set(tokens(rows)) == {1, 2}


def test_a_mask_shorter_than_the_vocabulary_bans_the_rest_and_a_longer_one_is_cut() -> None:
    rising = torch.arange(20.0)
    assert tokens([Row(rising, PLAIN, mask=b"\xff")]) == [7]
    assert tokens([Row(rising, PLAIN, mask=b"\x01\x00\xf8" + b"\xff" * 9)]) == [19]
    assert tokens([Row(rising, PLAIN, mask=b"\x01\x80\x00")]) == [15]


@pytest.mark.parametrize(
    "options",
    [
        {"mask": b""},
        {"mask": b"\x00" * 3},
        {"mask": b"\x00\x00\xf0"},  # bits beyond the vocabulary
        {"mask": b"\x02", "stop_ids": [1], "sampling": Sampling(min_tokens=1)},
        {"stop_ids": list(range(20)), "sampling": Sampling(min_tokens=1)},
    ],
)
def test_a_row_left_without_any_token_raises(options: dict[str, Any]) -> None:
    row = replace(Row(torch.arange(20.0), PLAIN), **options)
    with pytest.raises(NothingToSample, match="no token is allowed"):
        tokens([Row(torch.arange(20.0), PLAIN), row])


def test_ids_the_model_does_not_have_are_left_out() -> None:
    sampling = Sampling(temperature=0.0, min_tokens=5, logit_bias=[(-1, 100.0), (4, 100.0), (10**12, 100.0)])
    assert tokens([Row(torch.tensor([1.0, 2.0, 3.0, 0.0]), sampling, stop_ids=[-1, 4, 2])]) == [1]


@pytest.mark.parametrize("stranger", [VOCABULARY, -1, 2**40])
def test_a_row_with_ids_the_model_does_not_have_is_refused_before_it_touches_a_mate(stranger: int) -> None:
    row = Row(torch.zeros(VOCABULARY), Sampling(repetition_penalty=2.0), prompt=[1, stranger])
    with pytest.raises(ValueError, match=str(stranger)):
        state_make([row], [0])


def test_a_slot_keeps_nothing_of_the_row_before() -> None:
    # Given a slot whose first row asked for everything
    before = Sampling(
        temperature=2.0,
        top_k=1,
        min_p=1.0,
        repetition_penalty=2.0,
        presence_penalty=2.0,
        frequency_penalty=2.0,
        logit_bias=[(1, -50.0)],
        min_tokens=50,
        logprobs=3,
        prompt_logprobs=3,
    )
    logits = torch.tensor([[0.0, 3.0, 2.0, 1.0]])
    state = state_make([Row(logits[0], before, prompt=[1], output=[1] * 5, stop_ids=[1])], [0])
    # When another takes it
    state.start(RowStart(SequenceKey("a", 1), 0, [1], 1, PLAIN, []))
    actual = logits.clone()
    process_logits(actual, state, np.array([0]), np.array([1]), {})
    # Then its logits are untouched
    assert torch.equal(actual, logits)
    assert state.logprobs[0] == state.prompt_logprobs[0] == -1


def test_ids_follow_the_plan_and_a_repeated_plan_changes_nothing() -> None:
    # Given a row that remembers, preempted after two tokens and begun again
    sampling = Sampling(temperature=0.0, frequency_penalty=1.0)
    row = Row(torch.zeros(9), sampling, prompt=[1, 2], output=[3, 4])
    state = state_make([row], [0])
    step = PlanRow(SequenceKey("a", 0), 0, 4, [5], 0, [], True)
    # When its next token is computed, twice
    for _ in range(2):
        state.extend(step)
    # Then its ids are these
    assert state.ids(0, 0, 5).tolist() == [1, 2, 3, 4, 5]
