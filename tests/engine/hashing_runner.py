"""A model whose every token depends on every KV entry of its context, in paged memory that plans alone write.

An entry depends on all ids up to its own, as in a transformer. A block of another row, an entry never
computed, a copy from the wrong place or a stale table therefore changes what is sampled, at once or later.
"""

from collections.abc import Iterable, Sequence

from gpuworker.engine.block_pool import BLOCK_SIZE
from gpuworker.engine.plan import Moves, PlanRow, RowStart, Sampled, StepPlan
from gpuworker.wire.messages import TokenLogprobs

VOCAB_SIZE = 64
_ROOT = 1
_NEVER_WRITTEN = -1


def _entry(before: int, token: int) -> int:
    return hash((before, token))


def _draw(entries: Iterable[int], seed: int) -> int:
    return hash((sum(entries), seed)) % VOCAB_SIZE


def expected_ids(prompt: Sequence[int], seed: int, count: int) -> list[int]:
    """What a row must sample, computed without blocks."""
    entries: list[int] = []
    for token in prompt:
        entries.append(_entry(entries[-1] if entries else _ROOT, token))
    sampled: list[int] = []
    for _ in range(count):
        sampled.append(_draw(entries, seed))
        entries.append(_entry(entries[-1], sampled[-1]))
    return sampled


class HashingRunner:
    vocab_size = VOCAB_SIZE

    def __init__(self, blocks: int, host_blocks: int = 0) -> None:
        self._device = [[_NEVER_WRITTEN] * BLOCK_SIZE for _ in range(blocks)]
        self._host = [[_NEVER_WRITTEN] * BLOCK_SIZE for _ in range(host_blocks)]
        self._rows: dict[int, tuple[RowStart, list[int]]] = {}  # by slot

    def move(self, moves: Moves) -> None:
        for device, host in moves.to_host:
            self._host[host] = list(self._device[device])
        for host, device in moves.to_device:
            self._device[device] = list(self._host[host])
        for source, target in moves.copies:
            self._device[target] = list(self._device[source])

    def run(self, plan: StepPlan) -> list[Sampled]:
        """No row sees what another writes in the same step: order within a step means nothing."""
        for start in plan.starts:
            self._rows[start.slot] = start, []
        contexts = [self._context(row) for row in plan.rows]
        return [self._run_row(row, context) for row, context in zip(plan.rows, contexts, strict=True)]

    def read_blocks(self, blocks: list[int]) -> list[bytes]:
        return [b" ".join(b"%d" % entry for entry in self._device[block]) for block in blocks]

    def write_blocks(self, blocks: list[int], contents: list[bytes]) -> None:
        for block, content in zip(blocks, contents, strict=True):
            self._device[block] = [int(entry) for entry in content.split()]

    def _context(self, row: PlanRow) -> list[int]:
        table = self._rows[row.slot][1]
        table[row.block_offset :] = row.new_blocks
        return [entry for block in table for entry in self._device[block]][: row.start]

    def _run_row(self, row: PlanRow, entries: list[int]) -> Sampled:
        start, table = self._rows[row.slot]
        for position, token in enumerate(row.tokens, row.start):
            entries.append(_entry(entries[-1] if entries else _ROOT, token))
            self._device[table[position // BLOCK_SIZE]][position % BLOCK_SIZE] = entries[-1]
        prompt = []
        if start.sampling.prompt_logprobs >= 0:
            told = start.tokens[row.start + 1 : min(len(entries) + 1, start.prompt_len)]
            prompt = [TokenLogprobs(token, -1.0, []) for token in told]
        return Sampled(_draw(entries, start.sampling.seed) if row.sample else -1, prompt=prompt)
