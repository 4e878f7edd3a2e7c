"""Logits to token ids, for all rows of a step at once.

A draw depends on the row's logits, its parameters and ids, its seed and the position of the token, on nothing
else: batch mates, chunking, preemption and restarts never change a result. A feature costs the rows that ask
for it, no others.

Order: raw logprobs; penalties, bias, bans; temperature; min_p, top_k, top_p; Gumbel noise, argmax.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpuworker.engine.logits_processors import process_logits
from gpuworker.engine.logprobs import token_logprobs
from gpuworker.engine.noise import exponential_log, noise_entries, noise_keys
from gpuworker.engine.plan import Sampled
from gpuworker.engine.sampling import GREEDY_BELOW
from gpuworker.engine.sampling_state import SamplingState
from gpuworker.engine.truncation import truncate


class Sampler:
    def __init__(self, vocab_size: int) -> None:
        self._entries = noise_entries(vocab_size)

    def sample(
        self,
        logits: Tensor,
        state: SamplingState,
        slots: NDArray[np.int64],
        lengths: NDArray[np.int64],
        masks: Mapping[int, bytes],
    ) -> list[Sampled]:
        """`logits` [rows, vocabulary] in float32, changed in place; `lengths`: how many ids each row has, the
        position that its next one takes; `masks` by slot. Raises NothingToSample."""
        asking = np.flatnonzero(state.logprobs[slots] >= 0)
        raw = torch.log_softmax(logits.index_select(0, torch.from_numpy(asking)), -1) if asking.size else None
        process_logits(logits, state, slots, lengths, masks)
        tokens = self._draw(logits, state, slots, lengths)
        sampled = [Sampled(token) for token in tokens.tolist()]
        if raw is not None:
            told = token_logprobs(raw, tokens[torch.from_numpy(asking)], state.logprobs[slots[asking]])
            for row, logprobs in zip(asking.tolist(), told, strict=True):
                sampled[row] = Sampled(sampled[row].token, logprobs)
        return sampled

    def _draw(
        self, logits: Tensor, state: SamplingState, slots: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> Tensor:
        temperature = state.temperature[slots]
        tokens = torch.argmax(logits, dim=-1)
        drawing = np.flatnonzero(temperature >= GREEDY_BELOW)
        if drawing.size:
            index = torch.from_numpy(drawing)
            chosen = logits.index_select(0, index)
            chosen /= torch.from_numpy(temperature[drawing])[:, None]
            drawn = slots[drawing]
            truncate(chosen, state.min_p[drawn], state.top_k[drawn], state.top_p[drawn])
            keys = noise_keys(state.seed[drawn], lengths[drawing].astype(np.uint64))
            tokens[index] = torch.argmax(chosen.sub_(exponential_log(keys, self._entries)), dim=-1)
        return tokens
