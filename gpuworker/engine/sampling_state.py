"""What sampling needs to know of every slot, kept across steps: parameters, and ids where a row needs them.

Filled from plans. Filling twice from the same plan is filling once.
"""

import numpy as np
from numpy.typing import NDArray

from gpuworker.engine.plan import PlanRow, RowStart

HOTTEST = 1e6  # temperatures above this are as flat as float32 can tell


class SamplingState:
    """Arrays indexed by slot. A plan is never trusted to be within an array: counts are clamped, ids to ban
    or bias that the model does not have are left out."""

    def __init__(self, slots: int, max_context_tokens: int, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.temperature = np.ones(slots, np.float32)
        self.top_k = np.zeros(slots, np.int64)
        self.top_p = np.ones(slots, np.float32)
        self.min_p = np.zeros(slots, np.float32)
        self.seed = np.zeros(slots, np.uint64)
        self.repetition_penalty = np.ones(slots, np.float32)
        self.presence_penalty = np.zeros(slots, np.float32)
        self.frequency_penalty = np.zeros(slots, np.float32)
        self.min_tokens = np.zeros(slots, np.int64)
        self.logprobs = np.full(slots, -1, np.int64)
        self.prompt_logprobs = np.full(slots, -1, np.int64)
        self.prompt_len = np.zeros(slots, np.int64)
        self.biased = np.zeros(slots, np.bool_)
        self._bias = [_NO_BIAS] * slots
        self._stop_ids = [_NO_IDS] * slots
        self._remembers = np.zeros(slots, np.bool_)
        # Memory is touched, and so taken, only where a row remembers.
        self._history = np.zeros((slots, max_context_tokens), np.int32)

    def start(self, start: RowStart) -> None:
        """A row takes a slot, with nothing left of the row before. Raises ValueError for ids to remember that
        the model does not have: they would count as entries of another row."""
        slot, sampling = start.slot, start.sampling
        self.temperature[slot] = min(sampling.temperature, HOTTEST)
        self.top_k[slot] = min(sampling.top_k, self.vocab_size)
        self.top_p[slot] = sampling.top_p
        self.min_p[slot] = sampling.min_p
        self.seed[slot] = sampling.seed & 0xFFFF_FFFF_FFFF_FFFF
        self.repetition_penalty[slot] = sampling.repetition_penalty
        self.presence_penalty[slot] = sampling.presence_penalty
        self.frequency_penalty[slot] = sampling.frequency_penalty
        self.min_tokens[slot] = min(sampling.min_tokens, self._history.shape[1])
        self.logprobs[slot] = min(sampling.logprobs, self.vocab_size)
        self.prompt_logprobs[slot] = min(sampling.prompt_logprobs, self.vocab_size)
        self.prompt_len[slot] = start.prompt_len
        self._bias[slot] = _bias(sampling.logit_bias, self.vocab_size)
        self.biased[slot] = self._bias[slot][0].size > 0
        self._stop_ids[slot] = _known(np.array(start.stop_ids, np.int64), self.vocab_size)
        self._remembers[slot] = (
            sampling.repetition_penalty != 1
            or sampling.presence_penalty != 0
            or sampling.frequency_penalty != 0
            or sampling.prompt_logprobs >= 0
        )
        if self._remembers[slot]:
            if strangers := [token for token in start.tokens if not 0 <= token < self.vocab_size]:
                raise ValueError(f"token id {strangers[0]} is outside the vocabulary of {self.vocab_size}")
            self._history[slot, : len(start.tokens)] = start.tokens

    def extend(self, row: PlanRow) -> None:
        if self._remembers[row.slot]:
            self._history[row.slot, row.start : row.start + len(row.tokens)] = row.tokens

    def ids(self, slot: int, first: int, end: int) -> NDArray[np.int32]:
        """The row's ids at positions first..end - 1, for rows with penalties or prompt logprobs."""
        return self._history[slot, first:end]

    def bias(self, slot: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Ids and what is added to their logits."""
        return self._bias[slot]

    def stop_ids(self, slot: int) -> NDArray[np.int64]:
        return self._stop_ids[slot]


_NO_IDS = np.zeros(0, np.int64)
_NO_BIAS = (_NO_IDS, np.zeros(0, np.float32))


def _bias(entries: list[tuple[int, float]], vocab_size: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    kept = [(token, value) for token, value in entries if 0 <= token < vocab_size]
    ids = np.array([token for token, _ in kept], np.int64)
    return ids, np.array([value for _, value in kept], np.float32)


def _known(ids: NDArray[np.int64], vocab_size: int) -> NDArray[np.int64]:
    return ids[(ids >= 0) & (ids < vocab_size)]
