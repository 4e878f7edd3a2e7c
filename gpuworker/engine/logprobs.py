"""Log-probabilities as clients see them: the model's own, before penalties, bias, bans and temperature."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpuworker.wire.messages import TokenLogprobs


def token_logprobs(logprobs: Tensor, tokens: Tensor, tops: NDArray[np.int64]) -> list[TokenLogprobs]:
    """`logprobs` [rows, vocabulary], float32 log_softmax of raw logits; `tokens` [rows] chosen; `tops` [rows]
    how many of the most likely are wanted beside it. Equal ones are ordered by id, so that the list does not
    depend on how a sort breaks ties."""
    chosen = logprobs.gather(-1, tokens[:, None])[:, 0]
    pairs = zip(tokens.tolist(), chosen.tolist(), _most_likely(logprobs, tops), strict=True)
    return [TokenLogprobs(token, logprob, top) for token, logprob, top in pairs]


def _most_likely(logprobs: Tensor, tops: NDArray[np.int64]) -> list[list[tuple[int, float]]]:
    widest = int(tops.max())
    if widest == 0:
        return [[] for _ in tops]
    # The k-th largest value is the same however topk orders ties; which ids reach it is then looked up.
    least = torch.topk(logprobs, widest, dim=-1).values[:, -1:]
    rows, ids = (index.numpy() for index in torch.nonzero(logprobs >= least, as_tuple=True))
    values = logprobs[rows, ids].numpy()
    edges = np.searchsorted(rows, np.arange(len(tops) + 1))
    result = []
    for row, top in enumerate(tops.tolist()):
        inside = slice(edges[row], edges[row + 1])
        order = np.argsort(-values[inside], kind="stable")[:top]
        result.append(list(zip(ids[inside][order].tolist(), values[inside][order].tolist(), strict=True)))
    return result
