"""Which blocks hold a sequence's KV: prefix hits, growth, copies of shared blocks, host memory.

The moves a decision needs are gathered and made once, before the step's forward pass. A block that a pending
move still reads is not given away before the plan is complete. No torch here.
"""

from collections.abc import Iterable

from gpuworker.engine.block_pool import BLOCK_SIZE, BlockPool, blocks_for
from gpuworker.engine.plan import Moves
from gpuworker.engine.sequence import Sequence
from policy.prefix import prefix_next


class KVManager:
    def __init__(self, blocks: int, *, host_blocks: int = 0, prefix_cache: bool = True) -> None:
        self.pool = BlockPool(blocks)
        self.host = BlockPool(host_blocks) if host_blocks else None
        self._prefix_cache = prefix_cache
        self._to_host: list[tuple[int, int]] = []
        self._to_device: list[tuple[int, int]] = []
        self._copies: list[tuple[int, int]] = []

    def take_moves(self) -> Moves:
        """The plan is complete: what its moves read may be given away from now on."""
        moves = Moves(self._to_host, self._to_device, self._copies)
        if self.host is not None:
            self.host.release([host for host, _ in self._to_device])
        self.pool.release([source for source, _ in self._copies])
        self._to_host, self._to_device, self._copies = [], [], []
        return moves

    # -- a row comes to the device ------------------------------------------------------------------------

    def admit(self, sequence: Sequence, spare_blocks: int) -> bool:
        """Gives blocks for all of the row's ids, if `spare_blocks` stay free; else changes nothing.

        KV comes, in this order of preference, from host memory, from choice 0 of the same request, from the
        prefix cache.
        """
        if sequence.host_blocks:
            return self._admit_from_host(sequence, spare_blocks)
        shared = self._fork(sequence)
        is_fork = bool(shared)
        if not is_fork:
            shared = self._hits(sequence)
        new = self.needed(sequence) - len(shared)
        revived = sum(not self.pool.references(block) for block in shared)
        if new + is_fork + revived + spare_blocks > self.pool.free_blocks:
            return False
        computed = sequence.prompt_len - 1 if is_fork else len(shared) * BLOCK_SIZE
        self.pool.share(shared)
        sequence.block_table = shared + self.pool.allocate(new)
        sequence.num_computed = computed
        sequence.published = computed // BLOCK_SIZE
        return True

    def needed(self, sequence: Sequence) -> int:
        """Blocks that an admission takes at most."""
        return blocks_for(len(sequence.token_ids))

    def _admit_from_host(self, sequence: Sequence, spare_blocks: int) -> bool:
        held = sequence.host_blocks
        if self.needed(sequence) + spare_blocks > self.pool.free_blocks:
            return False
        sequence.block_table = self.pool.allocate(self.needed(sequence))
        self._to_device += zip(held, sequence.block_table, strict=False)
        sequence.host_blocks = []
        sequence.published = 0  # these are other blocks
        return True

    def _fork(self, sequence: Sequence) -> list[int]:
        """Blocks of the prompt that choice 0 computed. The last prompt token is computed again, for a draw
        with this choice's seed; its block is copied first, see `extend`."""
        parent = sequence.parent
        if parent is None or not parent.is_forkable or sequence.output_len:
            return []
        return parent.block_table[: blocks_for(sequence.prompt_len)]

    def _hits(self, sequence: Sequence) -> list[int]:
        if not self._prefix_cache or sequence.sampling.prompt_logprobs >= 0:
            return []
        full = (len(sequence.token_ids) - 1) // BLOCK_SIZE  # at least one id is computed again
        return self.pool.match(self.chain_keys(sequence, full), sequence.token_ids[: full * BLOCK_SIZE])

    # -- a row grows --------------------------------------------------------------------------------------

    def extension(self, sequence: Sequence, count: int) -> int:
        """Free blocks that computing `count` more ids takes."""
        growth = blocks_for(sequence.num_computed + count) - len(sequence.block_table)
        return max(growth, 0) + self._must_replace(sequence)

    def extend(self, sequence: Sequence, count: int) -> int:
        """Makes the places of the next `count` ids exist and be the row's own. Returns from which entry on
        its block table is new. Raises PoolExhausted."""
        table = sequence.block_table
        changed = len(table)
        if self._must_replace(sequence):
            at = changed = sequence.num_computed // BLOCK_SIZE
            shared, (table[at],) = table[at], self.pool.allocate(1)
            if sequence.num_computed % BLOCK_SIZE:
                self._copies.append((shared, table[at]))  # the row's reference is held until it is made
            else:
                self.pool.release([shared])
        growth = blocks_for(sequence.num_computed + count) - len(table)
        if growth > 0:
            table += self.pool.allocate(growth)
        return changed

    def would_free(self, sequences: Iterable[Sequence], count: int) -> bool:
        """Whether that many blocks would be free if these rows left. Blocks that only they share are."""
        left: dict[int, int] = {}
        for sequence in sequences:
            for block in sequence.block_table:
                left[block] = left.get(block, self.pool.references(block)) - 1
                count -= not left[block]
            if count <= 0:
                return True
        return False

    def _must_replace(self, sequence: Sequence) -> bool:
        """Whether the next id's place lies in a block that others read."""
        at = sequence.num_computed // BLOCK_SIZE
        return at < len(sequence.block_table) and not self.pool.is_writable(sequence.block_table[at])

    def publish(self, sequence: Sequence) -> None:
        """Offers the blocks that are full and computed by now to the prefix cache."""
        if not self._prefix_cache:
            return
        full = sequence.num_computed // BLOCK_SIZE
        for at in range(sequence.published, full):
            key = self.chain_keys(sequence, at + 1)[at]
            tokens = sequence.token_ids[at * BLOCK_SIZE : (at + 1) * BLOCK_SIZE]
            self.pool.publish(sequence.block_table[at], key, tokens, sequence.flow.tenant, at)
        sequence.published = max(sequence.published, full)

    def chain_keys(self, sequence: Sequence, count: int) -> list[bytes]:
        """Of the first `count` full blocks of its ids."""
        chain, ids = sequence.chain, sequence.token_ids
        for at in range(len(chain) - 1, count):
            chain.append(prefix_next(chain[-1], ids[at * BLOCK_SIZE : (at + 1) * BLOCK_SIZE]))
        return chain[1 : count + 1]

    # -- a row leaves the device --------------------------------------------------------------------------

    def can_swap(self, sequence: Sequence) -> bool:
        return self.host is not None and blocks_for(sequence.num_computed) <= self.host.free_blocks

    def swap_out(self, sequence: Sequence) -> None:
        """To host memory; the row stays where it is in its computation."""
        assert self.host is not None
        written = sequence.block_table[: blocks_for(sequence.num_computed)]
        sequence.host_blocks = self.host.allocate(len(written))
        self._to_host += zip(written, sequence.host_blocks, strict=True)
        self._leave_device(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Its KV is computed again, save what the prefix cache still holds by then."""
        self._leave_device(sequence)
        sequence.num_computed = 0
        sequence.published = 0

    def release(self, sequence: Sequence) -> None:
        """It ended."""
        self._leave_device(sequence)
        if sequence.host_blocks and self.host is not None:
            self.host.release(sequence.host_blocks)
            sequence.host_blocks = []

    def _leave_device(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_table)
        sequence.block_table = []

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raises PoolCorrupt. Not between a plan and its moves."""
        rows = list(sequences)
        self.pool.check_integrity(row.block_table for row in rows)
        if self.host is not None:
            self.host.check_integrity(row.host_blocks for row in rows)
