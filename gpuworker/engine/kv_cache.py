"""The memory that holds keys and values: blocks on the device, and blocks on the host for paused rows.

One block is 16 positions of all layers, keys and values. Which block belongs to whom is the scheduler's
business; nothing here checks it. Callers are in torch's inference mode.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from gpuworker.engine.block_pool import BLOCK_SIZE

WRITE_SLICE_BLOCKS = 8  # written at once: 94 blocks of SmolLM2-135M take 45 ms so, 107 ms in one piece
SWAP_SLICE_BLOCKS = 64  # moved between device and host at once: bounds the temporary copy

Pairs = Iterable[tuple[int, int]]


class KVTooLarge(Exception):
    """Less memory is there than the blocks take."""


class KVCache:
    """`keys` and `values` are [layers, blocks · 16, kv_heads, head_dim], zeros at first: attention reads
    and masks what was never written, and a masked NaN would poison the sum."""

    def __init__(
        self,
        layers: int,
        blocks: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        *,
        host_blocks: int = 0,
        device: str = "cpu",
    ) -> None:
        """Raises KVTooLarge."""
        values = BLOCK_SIZE * kv_heads * head_dim
        shape = (2, layers, blocks * BLOCK_SIZE, kv_heads, head_dim)
        memory = _zeros(shape, dtype, torch.device(device))
        self.keys, self.values = memory
        self._slots = memory.view(2 * layers, blocks * BLOCK_SIZE, -1)
        self._blocks = memory.view(2 * layers, blocks, values)
        host = _zeros((2 * layers, host_blocks, values), dtype, torch.device("cpu"))
        self._host = host.pin_memory() if memory.is_cuda and host_blocks else host

    @property
    def block_bytes(self) -> int:
        return self._blocks.shape[0] * self._blocks.shape[2] * self._blocks.itemsize

    def erase(self, slots: Tensor) -> None:
        """Zeros at single positions: `slots` are block · 16 + offset."""
        self._slots.index_fill_(1, slots, 0)

    def to_host(self, pairs: Pairs) -> None:
        """(device block, host block): where two name one destination, the later holds."""
        _swap(self._blocks, self._host, pairs)

    def to_device(self, pairs: Pairs) -> None:
        """(host block, device block)."""
        _swap(self._host, self._blocks, pairs)

    def copy(self, pairs: Pairs) -> None:
        """(device block, device block), with the effect of one after the other."""
        origin: dict[int, int] = {}
        for source, target in pairs:
            origin[target] = origin.get(source, source)
        sources, targets = _index(origin.values(), self._blocks), _index(origin, self._blocks)
        self._blocks.index_copy_(1, targets, self._blocks.index_select(1, sources))

    def read(self, blocks: list[int]) -> list[bytes]:
        """The bytes of whole blocks: keys of all layers, then values, as they lie in memory."""
        picked = self._blocks.index_select(1, _index(blocks, self._blocks)).transpose(0, 1).cpu()
        return [block.contiguous().view(torch.uint8).numpy().tobytes() for block in picked]

    def write(self, blocks: list[int], contents: list[bytes]) -> None:
        """What `read` gave. Raises ValueError, nothing written, for contents of another shape or with values
        that are not finite: whoever gets the block after its next owner would read them."""
        if len(blocks) != len(contents):
            raise ValueError(f"{len(contents)} contents for {len(blocks)} blocks")
        if wrong := {len(content) for content in contents} - {self.block_bytes}:
            raise ValueError(f"a block holds {self.block_bytes} bytes, not {min(wrong)}")
        targets = _index(blocks, self._blocks)
        if not blocks:
            return
        slices = [slice(at, at + WRITE_SLICE_BLOCKS) for at in range(0, len(blocks), WRITE_SLICE_BLOCKS)]
        parts = [self._parsed(contents[part]) for part in slices]
        if not all(bool(torch.isfinite(values.sum())) for values in parts):
            raise ValueError(f"blocks {blocks} would hold values that are not finite")
        for part, values in zip(slices, parts, strict=True):
            self._blocks.index_copy_(1, targets[part], values.to(self._blocks.device))

    def _parsed(self, contents: list[bytes]) -> Tensor:
        """[layers, blocks, values of a block]"""
        flat = torch.frombuffer(bytearray(b"".join(contents)), dtype=self._blocks.dtype)
        return flat.view(len(contents), self._blocks.shape[0], self._blocks.shape[2]).transpose(0, 1)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    try:
        return torch.zeros(shape, dtype=dtype, device=device)
    except RuntimeError as error:  # how torch says that there is no memory
        gib = math.prod(shape) * dtype.itemsize / 2**30
        raise KVTooLarge(f"no memory for KV blocks of {gib:.1f} GiB on {device}") from error


def _swap(source: Tensor, target: Tensor, pairs: Pairs) -> None:
    origin = {to: start for start, to in pairs}
    starts, ends = _index(origin.values(), source), _index(origin, target)
    for at in range(0, len(origin), SWAP_SLICE_BLOCKS):
        part = slice(at, at + SWAP_SLICE_BLOCKS)
        target.index_copy_(1, ends[part], source.index_select(1, starts[part]).to(target.device))


def _index(blocks: Iterable[int], memory: Tensor) -> Tensor:
    """Block numbers where `memory` lies. Raises ValueError for blocks it does not have."""
    listed = list(blocks)
    if listed and not 0 <= min(listed) <= max(listed) < memory.shape[1]:
        raise ValueError(f"blocks {min(listed)} to {max(listed)}, there are {memory.shape[1]}")
    return torch.tensor(listed, dtype=torch.int64, device=memory.device)
