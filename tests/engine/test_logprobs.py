"""Logprobs are the model's own: of raw logits, the chosen token always among them."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from gpuworker.engine.logprobs import token_logprobs
from gpuworker.wire.messages import Sampling, TokenLogprobs
from tests.engine.sampling_rows import Row, sample


def asked(logits: torch.Tensor, **options: object) -> TokenLogprobs:
    [sampled] = sample([Row(logits, Sampling(**options), prompt=[0, 1], output=[2], stop_ids=[3])])  # type: ignore[arg-type]
    assert sampled.logprobs is not None
    assert sampled.logprobs.token == sampled.token
    return sampled.logprobs


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 1, "temperature": 2.0},
        {"temperature": 0.0},
        {"temperature": 0.3, "top_p": 0.2, "min_p": 0.5},
        {"repetition_penalty": 5.0, "presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"logit_bias": [(4, 100.0)]},
        {"min_tokens": 9},
    ],
)
def test_logprobs_are_of_raw_logits_whatever_changes_the_draw(options: dict[str, object]) -> None:
    logits = torch.randn(300, generator=torch.Generator().manual_seed(3)) * 4
    raw = torch.log_softmax(logits, -1)
    told = asked(logits, logprobs=5, seed=11, **options)
    best = raw.topk(5)
    assert [token for token, _ in told.top] == best.indices.tolist()
    assert [value for _, value in told.top] == pytest.approx(best.values.tolist())
    assert told.logprob == pytest.approx(float(raw[told.token]))


def test_the_chosen_token_is_told_when_it_is_not_among_the_most_likely() -> None:
    logits = torch.arange(100.0) / 10
    told = asked(logits, logprobs=3, logit_bias=[(0, 100.0)])
    assert told.token == 0
    assert [token for token, _ in told.top] == [99, 98, 97]
    assert told.logprob == pytest.approx(float(torch.log_softmax(logits, -1)[0]))


def test_none_are_computed_for_a_row_that_did_not_ask_and_no_alternatives_for_0() -> None:
    logits = torch.arange(10.0)
    plain, bare, full = (Row(logits, Sampling(logprobs=count)) for count in (-1, 0, 20))
    first, second, third = sample([plain, bare, full])
    assert first.logprobs is None
    assert second.logprobs is not None
    assert second.logprobs.top == []
    assert third.logprobs is not None
    assert len(third.logprobs.top) == 10, "no more than the model has"


@settings(max_examples=100, deadline=None)
@given(data=st.data(), rows=st.integers(1, 6), vocabulary=st.integers(1, 40))
def test_the_most_likely_first_and_equal_ones_by_id(data: st.DataObject, rows: int, vocabulary: int) -> None:
    levels = st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=vocabulary, max_size=vocabulary)
    logprobs = torch.log_softmax(torch.tensor([data.draw(levels) for _ in range(rows)]), -1)
    tops = [data.draw(st.integers(0, vocabulary)) for _ in range(rows)]
    told = token_logprobs(logprobs, torch.zeros(rows, dtype=torch.int64), np.array(tops))
    for row, top, entry in zip(logprobs.tolist(), tops, told, strict=True):
        assert entry.top == sorted(enumerate(row), key=lambda pair: (-pair[1], pair[0]))[:top]
        assert entry.logprob == row[0]
