"""What changes logits before temperature: penalties, then bias, then bans. Greedy rows are changed too.

Changes are sparse: only entries of ids that the row holds, or its request names, are read and written. Rows
that ask for nothing are not looked at.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpuworker.engine.sampling_state import SamplingState

Ints = NDArray[np.int64]


class NothingToSample(Exception):
    """Every token of the vocabulary is banned for a row: grammar mask and min_tokens leave it none."""


def process_logits(
    logits: Tensor, state: SamplingState, slots: Ints, lengths: Ints, masks: Mapping[int, bytes]
) -> None:
    """Changes `logits` [rows, vocabulary] in place. `lengths`: ids that each row has. `masks` by slot, a bit
    for each entry, lowest bit first; entries beyond a mask are banned. Raises NothingToSample."""
    _repetition_penalty(logits, state, slots, lengths)
    _output_penalties(logits, state, slots, lengths)
    _logit_bias(logits, state, slots)
    banned = _ban_stop_ids(logits, state, slots, lengths) + _ban_masked(logits, slots, masks)
    if banned and bool((logits[banned].amax(-1) == -torch.inf).any()):
        raise NothingToSample("no token is allowed by the grammar, the stop ids and min_tokens together")


def _repetition_penalty(logits: Tensor, state: SamplingState, slots: Ints, lengths: Ints) -> None:
    """Positive logits of ids seen in prompt or output are divided, negative ones multiplied (CTRL, Keskar et
    al. 2019). An id seen twice is written twice, with the same value."""
    rows = np.flatnonzero(state.repetition_penalty[slots] != 1)
    if not rows.size:
        return
    seen = [state.ids(slots[row], 0, lengths[row]) for row in rows]
    flat, where = logits.view(-1), _flat_index(logits, rows, seen)
    penalty = _repeated(state.repetition_penalty[slots[rows]], seen)
    values = flat[where]
    flat[where] = torch.where(values > 0, values / penalty, values * penalty)


def _output_penalties(logits: Tensor, state: SamplingState, slots: Ints, lengths: Ints) -> None:
    """OpenAI's formula: an id sampled `count` times loses frequency · count + presence."""
    asked = (state.presence_penalty[slots] != 0) | (state.frequency_penalty[slots] != 0)
    rows = np.flatnonzero(asked & (lengths > state.prompt_len[slots]))
    if not rows.size:
        return
    output = [state.ids(slots[row], state.prompt_len[slots[row]], lengths[row]) for row in rows]
    counts = torch.from_numpy(np.concatenate([np.bincount(ids)[ids] for ids in output])).float()
    loss = counts * _repeated(state.frequency_penalty[slots[rows]], output)
    loss += _repeated(state.presence_penalty[slots[rows]], output)
    flat, where = logits.view(-1), _flat_index(logits, rows, output)
    flat[where] = flat[where] - loss


def _logit_bias(logits: Tensor, state: SamplingState, slots: Ints) -> None:
    rows = np.flatnonzero(state.biased[slots])
    if not rows.size:
        return
    entries = [state.bias(slots[row]) for row in rows]
    where = _flat_index(logits, rows, [ids for ids, _ in entries])
    values = np.concatenate([values for _, values in entries])
    logits.view(-1).index_add_(0, where, torch.from_numpy(values))


def _ban_stop_ids(logits: Tensor, state: SamplingState, slots: Ints, lengths: Ints) -> list[int]:
    """Rows whose output is shorter than their `min_tokens`."""
    rows = np.flatnonzero(lengths - state.prompt_len[slots] < state.min_tokens[slots])
    if rows.size:
        where = _flat_index(logits, rows, [state.stop_ids(slots[row]) for row in rows])
        logits.view(-1).index_fill_(0, where, -torch.inf)
    result: list[int] = rows.tolist()
    return result


def _ban_masked(logits: Tensor, slots: Ints, masks: Mapping[int, bytes]) -> list[int]:
    rows = [row for row, slot in enumerate(slots.tolist()) if slot in masks] if masks else []
    if rows:
        vocabulary = logits.shape[-1]
        banned = np.ones((len(rows), vocabulary), np.bool_)
        for at, row in enumerate(rows):
            bits = np.frombuffer(masks[int(slots[row])], np.uint8)
            allowed = np.unpackbits(bits, bitorder="little")[:vocabulary]
            banned[at, : len(allowed)] = allowed == 0
        index = torch.tensor(rows)
        picked = logits.index_select(0, index)
        logits[index] = picked.masked_fill_(torch.from_numpy(banned), -torch.inf)
    return rows


def _flat_index(logits: Tensor, rows: Ints, ids: Sequence[NDArray[np.signedinteger[Any]]]) -> Tensor:
    """Of every row's ids in the logits as one line."""
    firsts = rows * logits.shape[-1]
    return torch.from_numpy(np.concatenate([first + of for first, of in zip(firsts, ids, strict=True)]))


def _repeated(values: NDArray[np.float32], ids: list[NDArray[np.int32]]) -> Tensor:
    return torch.from_numpy(np.repeat(values, [len(of) for of in ids]))
