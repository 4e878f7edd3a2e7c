"""Draws depend on logits, seed and position only, and follow the distribution they should."""

from collections import Counter
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from gpuworker.engine import sampler as sampler_module
from gpuworker.engine.sampler import Sampler, SamplingColumns, exponential_log, noise_keys

VOCABULARY = 6


def draw(
    logits: torch.Tensor,
    seeds: list[int],
    positions: list[int],
    *,
    temperature: list[float] | None = None,
    top_p: list[float] | None = None,
    top_k: list[int] | None = None,
) -> list[int]:
    rows = len(seeds)
    columns = SamplingColumns(rows)
    columns.seed[:] = seeds
    columns.temperature[:] = temperature or [1.0] * rows
    columns.top_p[:] = top_p or [1.0] * rows
    columns.top_k[:] = top_k or [0] * rows
    sampler = Sampler(logits.shape[1])
    return sampler.sample(logits.clone(), columns, np.arange(rows), np.array(positions))


def frequencies(logits: list[float], count: int = 40_000, **options: float) -> list[float]:
    """Of draws at `count` positions of one seed."""
    rows = torch.tensor([logits]).expand(count, -1)
    listed = {name: [value] * count for name, value in options.items()}
    tokens = draw(rows, [7] * count, list(range(count)), **listed)  # type: ignore[arg-type]
    seen = Counter(tokens)
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


def test_top_p_over_more_tokens_than_the_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "CANDIDATES", 2)
    wide = [share > 0 for share in frequencies(LOGITS, top_p=0.9)]
    assert wide == [True, True, True, False, True, False]


def test_temperature_0_is_the_argmax_beside_rows_that_draw() -> None:
    logits = torch.tensor([LOGITS] * 200)
    tokens = draw(logits, list(range(200)), [0] * 200, temperature=[0.0, 3.0] * 100)
    assert set(tokens[0::2]) == {0}
    assert len(set(tokens[1::2])) > 3


@settings(max_examples=50, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=8),
    position=st.integers(0, 8000),
    data=st.data(),
)
def test_a_row_draws_the_same_alone_and_among_any_mates(
    seeds: list[int], position: int, data: st.DataObject
) -> None:
    rows = len(seeds)
    logits = torch.randn(rows, 500, generator=torch.Generator().manual_seed(position)) * 3
    options: dict[str, list[Any]] = {
        "temperature": data.draw(st.lists(st.sampled_from([0.0, 0.7, 1.5]), min_size=rows, max_size=rows)),
        "top_p": data.draw(st.lists(st.sampled_from([1.0, 0.9, 0.3]), min_size=rows, max_size=rows)),
        "top_k": data.draw(st.lists(st.sampled_from([0, 1, 20, 9999]), min_size=rows, max_size=rows)),
    }
    together = draw(logits, seeds, [position] * rows, **options)
    for row, seed in enumerate(seeds):
        alone = {name: [values[row]] for name, values in options.items()}
        assert draw(logits[row : row + 1], [seed], [position], **alone) == [together[row]]
        if options["top_k"][row] == 1:
            assert together[row] == int(logits[row].argmax())


def test_neighbouring_seeds_and_positions_are_unrelated() -> None:
    """Two rows of flat logits over 1,000 entries agree in one draw of a thousand by chance."""
    flat = torch.zeros(1, 1000).expand(4000, -1)
    base = draw(flat, [5] * 4000, list(range(4000)))
    other_seed = draw(flat, [6] * 4000, list(range(4000)))
    shifted = draw(flat, [5] * 4000, list(range(1, 4001)))
    for other in (other_seed, shifted, base[1:] + base[:1]):
        if other is shifted:
            assert shifted[:-1] == base[1:]
            continue
        assert sum(a == b for a, b in zip(base, other, strict=True)) < 20
    assert len(set(base)) > 950


@pytest.mark.parametrize("options", [{"top_k": [1]}, {"top_p": [0.5]}])
def test_the_largest_noise_never_lets_an_entry_left_out_win(options: dict[str, list[Any]]) -> None:
    # Given the draw in which the only entry that is kept has noise too large for float32's uniforms below 1
    seed, position, entry = 7, 249, 34_581
    logits = torch.full((1, 49_152), -5.0)
    logits[0, entry] = 20.0
    noise = exponential_log(
        noise_keys(np.array([seed], np.uint64), np.array([position], np.uint64)),
        Sampler(logits.shape[1])._entries,
    )
    assert int(noise.argmax()) == entry
    assert bool(torch.isfinite(noise).all())
    # Then it is drawn
    assert draw(logits, [seed], [position], **options) == [entry]
