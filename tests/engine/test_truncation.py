"""Which entries a row keeps is decided by that row alone, to the last bit."""

import numpy as np
import pytest
import torch
from torch import Tensor

from gpuworker.engine import truncation
from gpuworker.engine.truncation import truncate


def kept(logits: Tensor, top_k: list[int], top_p: list[float]) -> Tensor:
    cut = logits.clone()
    truncate(cut, np.zeros(len(cut), np.float32), np.array(top_k), np.array(top_p, np.float32))
    return cut > -torch.inf


def shares(logits: Tensor, count: int) -> Tensor:
    """Running sums of the probabilities of the `count` most likely entries, among themselves, in float64."""
    return torch.softmax(torch.topk(logits.double(), count, dim=-1).values, -1).cumsum(-1)


def test_top_k_alone_keeps_entries_whose_share_is_lost_in_rounding() -> None:
    [row] = kept(torch.tensor([[0.0, -20.0, -30.0, -40.0]]), [3], [1.0])
    assert row.tolist() == [True, True, True, False]


def test_top_p_at_a_running_sum_cuts_alike_alone_and_beside_mates() -> None:
    # Given rows whose top_p is, as near as float32 can say, the sum of their 20 most likely entries
    logits = torch.randn(64, 40_000, generator=torch.Generator().manual_seed(1)) * 3
    top_p = shares(logits, logits.shape[1])[:, 19].tolist()
    # Then mates, and how many candidates they ask for, change nothing
    alone = torch.cat([kept(row[None], [0], [p]) for row, p in zip(logits, top_p, strict=True)])
    together = kept(logits, [0] * 63 + [3000], top_p)
    assert torch.equal(together[:63], alone[:63])
    assert torch.equal(kept(logits, [0] * 64, top_p), alone)


def test_top_p_within_top_k_does_not_depend_on_the_mates_top_k() -> None:
    logits = torch.randn(300, 4_000, generator=torch.Generator().manual_seed(2)) * 2
    top_p = shares(logits, 50)[:, 9].tolist()
    narrow = kept(logits, [50] * 300, top_p)
    wide = kept(torch.cat([logits, logits[:1]]), [50] * 300 + [2_500], [*top_p, 1.0])
    assert torch.equal(wide[:300], narrow)


def test_candidates_that_are_not_enough_give_what_more_would(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(200, 2_000, generator=torch.Generator().manual_seed(3))
    top_p = shares(logits, logits.shape[1])[:, 29].tolist()
    enough = kept(logits, [0] * 200, top_p)
    monkeypatch.setattr(truncation, "CANDIDATES", 8)
    assert torch.equal(kept(logits, [0] * 200, top_p), enough)
