"""Random histories of rows that begin, grow, fork and end, against a slow model that is easy to believe."""

from collections import Counter
from functools import cache

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpuworker.engine.block_pool import BLOCK_SIZE, BlockPool, PoolExhausted
from policy.prefix import prefix_next, prefix_root, router_keeps

BLOCKS = 9
TENANTS = st.sampled_from(["one", "two", "three"])
# Prompts of up to six blocks, each block one of two contents: many beginnings are common.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple)


@cache
def links(tenant: str, contents: tuple[int, ...]) -> list[bytes]:
    keys = [prefix_root(b"secret", tenant, "digest", "", "float32")]
    for content in contents:
        keys.append(prefix_next(keys[-1], [content] * BLOCK_SIZE))
    return keys[1:]


def ids(contents: tuple[int, ...]) -> list[int]:
    return [content for content in contents for _ in range(BLOCK_SIZE)]


class Row:
    def __init__(self, tenant: str, contents: tuple[int, ...], table: list[int]) -> None:
        self.tenant, self.contents, self.table = tenant, contents, table
        self.published = 0


class Model:
    """The whole pool as lists. `free` is in order of release; `keys` is what each block is known for."""

    def __init__(self, ceiling: float) -> None:
        self.ceiling = ceiling
        self.blank = list(range(BLOCKS))
        self.cached: list[int] = []
        self.keys: dict[int, tuple[bytes, str, int]] = {}
        self.above: list[str] = []  # owners above the ceiling, as they got there

    def take(self) -> int:
        if self.blank:
            return self.blank.pop(0)
        owners = [owner for owner in self.above if self.count(owner) > self.ceiling]
        block = next(b for b in self.cached if not owners or self.keys[b][1] == owners[0])
        self.wake(block)
        del self.keys[block]
        return block

    def wake(self, block: int) -> None:
        self.cached.remove(block)
        self.above = [owner for owner in self.above if self.count(owner) > self.ceiling]

    def rest(self, block: int) -> None:
        if block not in self.keys:
            self.blank.append(block)
            return
        self.cached.append(block)
        owner = self.keys[block][1]
        if self.count(owner) > self.ceiling and owner not in self.above:
            self.above.append(owner)

    def count(self, owner: str) -> int:
        return sum(self.keys[block][1] == owner for block in self.cached)

    def find(self, keys: list[bytes]) -> list[int]:
        by_key = {key: block for block, (key, _, _) in self.keys.items()}
        run = []
        for key in keys:
            if key not in by_key:
                break
            run.append(by_key[key])
        return run


class PoolHistory(RuleBasedStateMachine):
    @initialize(share=st.sampled_from([0.0, 0.25, 0.5, 1.0]))
    def begin(self, share: float) -> None:
        self.pool = BlockPool(BLOCKS, owner_share=share)
        self.model = Model(int(share * BLOCKS))
        self.rows: list[Row] = []
        self.router: set[bytes] = set()

    @rule(tenant=TENANTS, contents=PROMPTS)
    def admit(self, tenant: str, contents: tuple[int, ...]) -> None:
        """A hit is taken, the rest allocated; when that fails nothing has changed."""
        hit = self.pool.match(links(tenant, contents), ids(contents))
        assert hit == self.model.find(links(tenant, contents))
        self._share(hit)
        missing = len(contents) - len(hit)
        try:
            taken = self.pool.allocate(missing)
        except PoolExhausted:
            assert missing > len(self.model.blank) + len(self.model.cached)
            self._release(hit)
            return
        assert taken == [self.model.take() for _ in range(missing)]
        self.rows.append(Row(tenant, contents, [*hit, *taken]))
        self.rows[-1].published = len(hit)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def compute_one_block(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(self.rows))
        if row.published == len(row.table):
            return
        at = row.published
        block, key = row.table[at], links(row.tenant, row.contents)[at]
        row.published += 1
        self.pool.publish(block, key, ids(row.contents[at : at + 1]), row.tenant, at)
        if key not in {known for known, _, _ in self.model.keys.values()}:
            self.model.keys[block] = (key, row.tenant, at)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(self.rows))
        self._share(row.table)
        self.rows.append(Row(row.tenant, row.contents, list(row.table)))
        self.rows[-1].published = row.published

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        row = self.rows.pop(data.draw(st.integers(0, len(self.rows) - 1)))
        self._release(row.table)

    @rule()
    def report(self) -> None:
        added, evicted = self.pool.take_events()
        assert not set(added) & set(evicted)
        self.router = (self.router | set(added)) - set(evicted)
        assert self.router == self._kept()

    @rule()
    def meet_a_new_router(self) -> None:
        self.router = set(self.pool.published_keys())
        assert self.router == self._kept()

    @rule()
    def forget_everything(self) -> None:
        self.pool.clear_cache()
        self.model.keys.clear()
        self.model.blank += self.model.cached
        self.model.cached.clear()
        self.model.above.clear()

    @invariant()
    def both_agree(self) -> None:
        tables = [row.table for row in self.rows]
        self.pool.check_integrity(tables)
        assert self.pool.free_blocks == len(self.model.blank) + len(self.model.cached)
        assert self.pool.cached_blocks == len(self.model.keys)
        owners = Counter(block for table in tables for block in table)
        for block in range(BLOCKS):
            assert self.pool.references(block) == owners[block]
            assert self.pool.is_writable(block) == (owners[block] == 1 and block not in self.model.keys)

    def _kept(self) -> set[bytes]:
        return {key for key, _, depth in self.model.keys.values() if router_keeps(depth)}

    def _share(self, blocks: list[int]) -> None:
        for block in blocks:
            if not self.pool.references(block):
                self.model.wake(block)
            self.pool.share([block])

    def _release(self, blocks: list[int]) -> None:
        self.pool.release(blocks)
        for block in reversed(blocks):
            if not self.pool.references(block):
                self.model.rest(block)


TestPoolHistory = PoolHistory.TestCase
TestPoolHistory.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)
