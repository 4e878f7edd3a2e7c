"""Draws depend on logits, seed and position only, and follow the distribution they should."""

from collections import Counter
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from transformers import MinPLogitsWarper

from gpuworker.engine import truncation
from gpuworker.engine.noise import exponential_log, noise_entries, noise_keys
from gpuworker.engine.sampler import Sampler
from gpuworker.engine.truncation import truncate
from gpuworker.wire.messages import Sampling
from tests.engine.sampling_rows import Row, sample, state_make, tokens


def frequencies(logits: list[float], count: int = 40_000, **options: Any) -> list[float]:
    """Of draws at `count` positions of one seed."""
    row = Row(torch.tensor(logits), Sampling(seed=7, **options))
    drawn = Sampler(len(logits)).sample(
        row.logits.expand(count, -1).clone(),
        state_make([row], [0]),
        np.zeros(count, np.int64),
        np.arange(count),
        {},
    )
    seen = Counter(sampled.token for sampled in drawn)
    return [seen[token] / count for token in range(len(logits))]


LOGITS = [2.0, 1.0, 0.0, -1.0, 0.5, -3.0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    expected = torch.softmax(torch.tensor(LOGITS) / temperature, -1)
    torch.testing.assert_close(
        torch.tensor(frequencies(LOGITS, temperature=temperature)), expected, atol=0.01, rtol=0
    )


def test_top_k_keeps_the_k_most_likely_in_proportion() -> None:
    kept = torch.softmax(torch.tensor([2.0, 1.0, 0.5]), -1)
    seen = frequencies(LOGITS, top_k=3)
    torch.testing.assert_close(torch.tensor([seen[0], seen[1], seen[4]]), kept, atol=0.01, rtol=0)
    assert seen[2] == seen[3] == seen[5] == 0


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    # softmax: .56 .21 .08 .03 .13 .00, so 0.7 needs the two most likely and 0.8 a third
    assert [share > 0 for share in frequencies(LOGITS, top_p=0.7)] == [True, True, False, False, False, False]
    assert [share > 0 for share in frequencies(LOGITS, top_p=0.8)] == [True, True, False, False, True, False]
    assert frequencies(LOGITS, top_p=0.1) == [1, 0, 0, 0, 0, 0]


def test_top_p_counts_within_what_top_k_left() -> None:
    # of the first two alone, .73 and .27: 0.7 is reached by the first
    assert frequencies(LOGITS, top_k=2, top_p=0.7) == [1, 0, 0, 0, 0, 0]


def test_top_p_counts_within_what_min_p_left() -> None:
    # 0.8 of everything needs three; of the two that are at least a third as likely as the first, .73 and .27
    assert [share > 0 for share in frequencies(LOGITS, top_p=0.8, min_p=0.3)] == [True, True, *[False] * 4]
    assert frequencies(LOGITS, top_p=0.7, min_p=0.3) == [1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("min_p", [0.01, 0.2, 0.9, 1.0])
def test_min_p_keeps_what_the_reference_keeps(min_p: float) -> None:
    logits = torch.randn(8, 200, generator=torch.Generator().manual_seed(1)) * 3
    logits[0] = logits[0, 0]  # equally likely, all of them
    warp: Any = MinPLogitsWarper(min_p)
    expected = warp(torch.zeros(8, 0, dtype=torch.int64), logits)
    truncate(logits, np.full(8, min_p, np.float32), np.zeros(8, np.int64), np.ones(8, np.float32))
    assert torch.equal(logits, expected)


def test_top_p_over_more_tokens_than_the_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truncation, "CANDIDATES", 2)
    wide = [share > 0 for share in frequencies(LOGITS, top_p=0.9)]
    assert wide == [True, True, True, False, True, False]


def test_temperature_0_is_the_argmax_beside_rows_that_draw() -> None:
    greedy, warm = Sampling(temperature=0.0), Sampling(temperature=3.0)
    rows = [
        Row(torch.tensor(LOGITS), msg, position=position) for position in range(100) for msg in (greedy, warm)
    ]
    drawn = tokens(rows)
    assert set(drawn[0::2]) == {0}
    assert len(set(drawn[1::2])) > 3


def test_a_temperature_beyond_float32_draws_evenly() -> None:
    assert min(frequencies(LOGITS, temperature=1e300)) > 0.15


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    top_k=st.sampled_from([0, 1, 20, 9999]),
    min_p=st.sampled_from([0.0, 0.0, 0.1]),
    seed=st.integers(0, 2**64 - 1),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -0.5]),
    logit_bias=st.sampled_from([[], [], [(3, 5.0), (499, -100.0)]]),
    min_tokens=st.sampled_from([0, 0, 100]),
    logprobs=st.sampled_from([-1, -1, 0, 5]),
)
IDS = st.lists(st.integers(0, 499), max_size=30)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1), count=st.integers(2, 8))
def test_a_row_draws_the_same_alone_and_among_any_mates(data: st.DataObject, seed: int, count: int) -> None:
    # Given rows with any parameters and ids, in any slots
    logits = torch.randn(count, 500, generator=torch.Generator().manual_seed(seed)) * 3
    rows = [
        Row(
            row_logits,
            data.draw(SAMPLINGS),
            prompt=[1, *data.draw(IDS)],
            output=data.draw(IDS),
            stop_ids=[0, 7],
            mask=data.draw(st.sampled_from([None, None, b"\xf0" * 63])),
        )
        for row_logits in logits
    ]
    slots = data.draw(st.permutations(range(count + 3)))[:count]
    # Then each has the token and logprobs it has alone, to the bit
    together = sample(rows, slots)
    for row, sampled in zip(rows, together, strict=True):
        assert sample([row]) == [sampled]


def test_draws_do_not_change_between_releases() -> None:
    logits = ((torch.arange(4096) * 7919) % 1000).float() / 250
    seeds = [0, 1, 42, 2**63, 2**64 - 1, 42, 42, 7]
    positions = [0, 1, 5, 1000, 17, 6, 5, 5]
    options: list[dict[str, Any]] = [
        {},
        {},
        {"temperature": 0.7},
        {"temperature": 2.0},
        {"top_p": 0.9},
        {"top_p": 0.5, "top_k": 20},
        {"top_k": 50},
        {"temperature": 1e-6},
    ]
    rows = [
        Row(logits, Sampling(seed=seed, **option), position=position)
        for seed, position, option in zip(seeds, positions, options, strict=True)
    ]
    assert tokens(rows) == [2334, 2457, 421, 3939, 2051, 3642, 2963, 321]


def test_neighbouring_seeds_and_positions_are_unrelated() -> None:
    """Two rows of flat logits over 1,000 entries agree in one draw of a thousand by chance."""
    flat = torch.zeros(1000)

    def draws(seed: int, first: int) -> list[int]:
        sampling = Sampling(seed=seed)
        return tokens([Row(flat, sampling, position=position) for position in range(first, first + 4000)])

    base, other_seed, shifted = draws(5, 0), draws(6, 0), draws(5, 1)
    assert shifted[:-1] == base[1:]
    for other in (other_seed, base[1:] + base[:1]):
        assert sum(a == b for a, b in zip(base, other, strict=True)) < 20
    assert len(set(base)) > 950


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 0.5}, {"min_p": 0.5}])
def test_the_largest_noise_never_lets_an_entry_left_out_win(options: dict[str, Any]) -> None:
    # Given the draw in which the only entry that is kept has noise too large for float32's uniforms below 1
    seed, position, entry = 7, 249, 34_581
    logits = torch.full((49_152,), -5.0)
    logits[entry] = 20.0
    noise = exponential_log(
        noise_keys(np.array([seed], np.uint64), np.array([position], np.uint64)), noise_entries(len(logits))
    )
    assert int(noise.argmax()) == entry
    assert bool(torch.isfinite(noise).all())
    # Then it is drawn
    assert tokens([Row(logits, Sampling(seed=seed, **options), position=position)]) == [entry]
