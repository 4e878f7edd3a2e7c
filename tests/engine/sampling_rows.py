"""Rows to sample for, without a model: logits, parameters and ids are given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import RepetitionPenaltyLogitsProcessor

from gpuworker.engine.plan import RowStart, Sampled, SequenceKey
from gpuworker.engine.sampler import Sampler
from gpuworker.engine.sampling_state import SamplingState
from gpuworker.wire.messages import Sampling

CONTEXT = 512


@dataclass(frozen=True)
class Row:
    logits: Tensor  # [vocabulary]
    sampling: Sampling
    prompt: Sequence[int] = (0,)
    output: Sequence[int] = ()
    position: int | None = None  # of the token to sample: where prompt and output end, unless given
    stop_ids: list[int] = field(default_factory=list)
    mask: bytes | None = None


def state_make(rows: Sequence[Row], slots: Sequence[int]) -> SamplingState:
    state = SamplingState(max(slots) + 1, CONTEXT, len(rows[0].logits))
    for slot, row in zip(slots, rows, strict=True):
        ids = [*row.prompt, *row.output]
        key = SequenceKey("a", slot)
        state.start(RowStart(key, slot, ids, len(row.prompt), row.sampling, row.stop_ids))
    return state


def sample(rows: Sequence[Row], slots: Sequence[int] | None = None) -> list[Sampled]:
    slots = range(len(rows)) if slots is None else slots
    lengths = [len(row.prompt) + len(row.output) if row.position is None else row.position for row in rows]
    return Sampler(len(rows[0].logits)).sample(
        torch.stack([row.logits for row in rows]),
        state_make(rows, slots),
        np.array(slots, np.int64),
        np.array(lengths, np.int64),
        masks_of(rows, slots),
    )


def masks_of(rows: Sequence[Row], slots: Sequence[int]) -> Mapping[int, bytes]:
    return {slot: row.mask for slot, row in zip(slots, rows, strict=True) if row.mask is not None}


def tokens(rows: Sequence[Row], slots: Sequence[int] | None = None) -> list[int]:
    return [sampled.token for sampled in sample(rows, slots)]


def by_definition(row: Row) -> Tensor:
    """Its logits after penalties, bias, stop ids and mask, one entry after the other."""
    sampling = row.sampling
    penalise: Any = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
    logits: Tensor = penalise(torch.tensor([[*row.prompt, *row.output]]), row.logits[None].clone())[0]
    for token in range(len(logits)):
        count = list(row.output).count(token)
        logits[token] -= count * sampling.frequency_penalty + (count > 0) * sampling.presence_penalty
    for token, value in sampling.logit_bias:
        logits[token] += value
    if len(row.output) < sampling.min_tokens:
        logits[row.stop_ids] = -torch.inf
    if row.mask is not None:
        for token in range(len(logits)):
            byte = row.mask[token // 8] if token // 8 < len(row.mask) else 0
            if not byte >> (token % 8) & 1:
                logits[token] = -torch.inf
    return logits
