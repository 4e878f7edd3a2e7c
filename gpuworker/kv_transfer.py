"""KV of a prompt as messages of bounded size, and back. Pure: no sockets, no clock."""

from collections.abc import Iterator

from gpuworker.engine.transfer import PrefillResult
from gpuworker.wire.messages import KvBlocks

MESSAGE_BYTES = 4 << 20  # a larger message would hold up token frames behind its encoding


class BadTransfer(Exception):
    """What arrived is not the KV of the prompt that was asked for."""


def messages_of(sid: int, result: PrefillResult) -> Iterator[KvBlocks]:
    """At least one; a block larger than `MESSAGE_BYTES` travels alone."""
    first, size = 0, 0
    for index, block in enumerate(result.blocks):
        if index > first and size + len(block) > MESSAGE_BYTES:
            yield _message(sid, result, first, index)
            first, size = index, 0
        size += len(block)
    yield _message(sid, result, first, len(result.blocks))


def _message(sid: int, result: PrefillResult, first: int, end: int) -> KvBlocks:
    return KvBlocks(
        sid=sid,
        keys=result.keys[first:end],
        blocks=result.blocks[first:end],
        more=end < len(result.blocks),
        cached_tokens=result.cached_tokens,
    )


class Assembly:
    """Puts messages together again, and bounds what a peer can make us hold."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._keys: list[bytes] = []
        self._blocks: list[bytes] = []
        self.size_bytes = 0

    def add(self, message: KvBlocks) -> PrefillResult | None:
        """The whole, after its last message. Raises BadTransfer."""
        keys, blocks = message.keys, message.blocks
        if len(keys) != len(blocks):
            raise BadTransfer(f"{len(keys)} names for {len(blocks)} blocks")
        if message.more and not blocks:
            raise BadTransfer("a message without blocks, and more to follow")
        if len(self._blocks) + len(blocks) > self._max_blocks:
            raise BadTransfer(f"more than the {self._max_blocks} blocks of the prompt")
        if len({len(block) for block in (*self._blocks[:1], *blocks)}) > 1:
            raise BadTransfer("blocks of different sizes")
        self._keys += keys
        self._blocks += blocks
        self.size_bytes += sum(map(len, blocks))
        return None if message.more else PrefillResult(self._keys, self._blocks, message.cached_tokens)
