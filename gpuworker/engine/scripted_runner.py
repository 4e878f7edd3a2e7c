"""A runner without a model: every row echoes its own prompt, over and over, read back from its KV.

For tests of everything around the model, with the real scheduler and detokenizer. KV is modelled as one id
for each position, in device and host blocks as a plan says, so a wrong block shows as a wrong text. No torch
here.
"""

import time
from array import array

from gpuworker.engine.block_pool import BLOCK_SIZE
from gpuworker.engine.plan import Moves, PlanRow, RowStart, Sampled, StepPlan
from gpuworker.wire.messages import TokenLogprobs

ANY_VOCABULARY = 1 << 31
NOTHING = array("I", bytes(4 * BLOCK_SIZE))


class ScriptedRunner:
    """The token at position p of a row is that at p - len(prompt), or the next id after it that a mask and
    `min_tokens` allow. Its probability is 1."""

    def __init__(self, *, step_ms: float = 0.0, vocab_size: int = ANY_VOCABULARY) -> None:
        self.vocab_size = vocab_size
        self._step_ms = step_ms
        self._device: dict[int, array[int]] = {}
        self._host: dict[int, array[int]] = {}
        self._starts: dict[int, RowStart] = {}  # by slot
        self._tables: dict[int, list[int]] = {}  # by slot

    def move(self, moves: Moves) -> None:
        for source, target in moves.to_host:
            self._host[target] = self._block(source)[:]
        for source, target in moves.to_device:
            self._device[target] = self._host[source][:]
        for source, target in moves.copies:
            self._device[target] = self._block(source)[:]

    def run(self, plan: StepPlan) -> list[Sampled]:
        if self._step_ms:
            time.sleep(self._step_ms / 1000)
        for start in plan.starts:
            self._starts[start.slot], self._tables[start.slot] = start, []
        for row in plan.rows:
            self._tables[row.slot][row.block_offset :] = row.new_blocks
            self._write(row)
        return [self._sample(row, plan.masks.get(row.slot)) for row in plan.rows]

    def read_blocks(self, blocks: list[int]) -> list[bytes]:
        return [self._block(block).tobytes() for block in blocks]

    def write_blocks(self, blocks: list[int], contents: list[bytes]) -> None:
        """Raises ValueError for contents that are no block."""
        for content in contents:
            if len(content) != 4 * BLOCK_SIZE:
                raise ValueError(f"a block of {len(content)} bytes, not {4 * BLOCK_SIZE}")
        for block, content in zip(blocks, contents, strict=True):
            self._device[block] = array("I", content)

    def _block(self, block: int) -> "array[int]":
        return self._device.setdefault(block, NOTHING[:])

    def _write(self, row: PlanRow) -> None:
        table = self._tables[row.slot]
        for position, token in enumerate(row.tokens, row.start):
            self._block(table[position // BLOCK_SIZE])[position % BLOCK_SIZE] = token

    def _at(self, slot: int, position: int) -> int:
        return self._block(self._tables[slot][position // BLOCK_SIZE])[position % BLOCK_SIZE]

    def _sample(self, row: PlanRow, mask: bytes | None) -> Sampled:
        start = self._starts[row.slot]
        end = row.start + len(row.tokens)
        prompt: list[TokenLogprobs] = []
        if start.sampling.prompt_logprobs >= 0:
            known = range(row.start + 1, min(end + 1, start.prompt_len))
            prompt = [TokenLogprobs(start.tokens[at], 0.0, [(start.tokens[at], 0.0)]) for at in known]
        if not row.sample:
            return Sampled(prompt=prompt)
        banned = start.stop_ids if end - start.prompt_len < start.sampling.min_tokens else []
        token = self._at(row.slot, end - start.prompt_len)
        for _ in range(len(mask) * 8 if mask else len(banned) + 1):
            if token not in banned and (mask is None or _allows(mask, token)):
                break
            token = (token + 1) % (self.vocab_size if mask is None else len(mask) * 8)
        else:
            raise ValueError("no token is allowed")
        wants = start.sampling.logprobs
        logprobs = TokenLogprobs(token, 0.0, [(token, 0.0)][:wants]) if wants >= 0 else None
        return Sampled(token, logprobs, prompt)


def _allows(mask: bytes, token: int) -> bool:
    return token // 8 < len(mask) and bool(mask[token // 8] >> token % 8 & 1)
