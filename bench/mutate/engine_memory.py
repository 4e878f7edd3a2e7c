"""Ways to break the block pool, the prefix cache and the moves of KV. `bench.mutate.engine` runs them."""

from bench.mutate.mutation import Mutation

POOL = "gpuworker/engine/block_pool.py"
CACHE = "gpuworker/engine/cached_blocks.py"
PREFIX = "platform/policy/prefix.py"
KV = "gpuworker/engine/kv_manager.py"
SEQUENCE = "gpuworker/engine/sequence.py"

POOL_MUTATIONS = [
    Mutation("refcount off by one", POOL, "self._references[block] += 1", "self._references[block] += 2"),
    Mutation(
        "released while shared",
        POOL,
        "            if self._references[block]:\n                continue\n",
        "",
    ),
    Mutation(
        "double release unseen",
        POOL,
        'if not self._references[block]:\n                raise PoolCorrupt(f"block {block} was rel',
        'if False:\n                raise PoolCorrupt(f"block {block} was rel',
    ),
    Mutation("heads go before tails", POOL, "for block in reversed(blocks):", "for block in blocks:"),
    Mutation(
        "cached before blank",
        POOL,
        "if self._blank else self._cached.evict()",
        "if not self._cached.idle else self._cached.evict()",
    ),
    Mutation("failed allocation takes", POOL, "if count > self.free_blocks:", "if not self.free_blocks:"),
    Mutation("blank block shared", POOL, "if block in self._blank]:", "if False]:"),
    Mutation("shared block writable", POOL, "self._references[block] == 1 and block not", "block not"),
    Mutation("published block writable", POOL, " and block not in self._cached", ""),
    Mutation("partial block published", POOL, "if len(tokens) != BLOCK_SIZE:", "if False:"),
    Mutation(
        "free block published",
        POOL,
        'if not self._references[block]:\n            raise PoolCorrupt(f"block {block} was published by',
        'if False:\n            raise PoolCorrupt(f"block {block} was published by',
    ),
    Mutation(
        "cleared cache leaks",
        POOL,
        "            self._blank[block] = None\n\n    # -- idle",
        "            pass\n\n    # -- idle",
    ),
    Mutation(
        "second publisher takes the key",
        CACHE,
        "            self._is_same(self._entries[other], entry.content)\n            return\n",
        "            pass\n",
    ),
    Mutation("ids not compared", CACHE, "if held.content == content:", "if True:"),
    Mutation(
        "match goes on after a gap",
        CACHE,
        "            if block is None:\n                break\n",
        "            if block is None:\n                continue\n",
    ),
    Mutation(
        "referenced block evicted",
        CACHE,
        "        del self._idle[block]\n        of_owner",
        "        of_owner",
    ),
    Mutation("share of an owner ignored", CACHE, "if self._over else self._idle", "if False else self._idle"),
    Mutation(
        "owner above its share for ever",
        CACHE,
        "            self._over.pop(owner, None)\n",
        "            pass\n",
    ),
    Mutation("evicted key still known", CACHE, "        del self._block_of[entry.key]\n", ""),
    Mutation(
        "router hears every link",
        CACHE,
        "        if not router_keeps(entry.depth):\n            return\n",
        "",
    ),
    Mutation(
        "events are not balanced",
        CACHE,
        "        if entry.key in undone:\n            del undone[entry.key]\n        else:\n            done",
        "        if True:\n            done",
    ),
    Mutation("eviction untold", CACHE, "        self._note(entry, self._added, self._evicted)\n", ""),
    Mutation(
        "full list leaves old events",
        CACHE,
        "        self.take_events()\n        return [",
        "        return [",
    ),
    Mutation("tenant dropped", PREFIX, "_joined(tenant, salt)", "_joined(salt)"),
    Mutation("salt dropped", PREFIX, "_joined(tenant, salt)", "_joined(tenant)"),
    Mutation("digest dropped", PREFIX, "_joined(digest, adapter, kv_dtype)", "_joined(adapter, kv_dtype)"),
    Mutation("adapter dropped", PREFIX, "_joined(digest, adapter, kv_dtype)", "_joined(digest, kv_dtype)"),
    Mutation("dtype dropped", PREFIX, "_joined(digest, adapter, kv_dtype)", "_joined(digest, adapter)"),
    Mutation("ambiguous root", PREFIX, 'len(part).to_bytes(8, "little") + part', "part"),
    Mutation("chain forgets", PREFIX, "key=parent, ", ""),
    Mutation("secret not asked for", PREFIX, "    if not secret:", "    if False:"),
]

KV_MUTATIONS = [
    Mutation(
        "published before it is computed",
        KV,
        "full = sequence.num_computed // BLOCK_SIZE",
        "full = len(sequence.token_ids) // BLOCK_SIZE",
    ),
    Mutation(
        "published one block late",
        KV,
        "full = sequence.num_computed // BLOCK_SIZE",
        "full = sequence.num_computed // BLOCK_SIZE - 1",
    ),
    Mutation("never published", KV, "            self.pool.publish(", "            (lambda *_: None)("),
    Mutation("published under the first key", KV, "[at]\n            tokens", "[0]\n            tokens"),
    Mutation(
        "the whole prompt from the cache",
        KV,
        "full = (len(sequence.token_ids) - 1) // BLOCK_SIZE",
        "full = len(sequence.token_ids) // BLOCK_SIZE",
    ),
    Mutation("prompt logprobs from the cache", KV, " or sequence.sampling.prompt_logprobs >= 0", ""),
    Mutation(
        "swap restores a wrong block",
        KV,
        "zip(held, sequence.block_table, strict=False)",
        "zip(held[::-1], sequence.block_table, strict=False)",
    ),
    Mutation(
        "swap saves a wrong block",
        KV,
        "zip(written, sequence.host_blocks, strict=True)",
        "zip(written[::-1], sequence.host_blocks, strict=True)",
    ),
    Mutation(
        "swap loses the last block",
        KV,
        "sequence.block_table[: blocks_for(sequence.num_computed)]",
        "sequence.block_table[: sequence.num_computed // BLOCK_SIZE]",
    ),
    Mutation(
        "host blocks are never freed",
        KV,
        "            self.host.release([host for host, _ in self._to_device])",
        "            pass",
    ),
    Mutation("host blocks leak at the end", KV, "            self.host.release(sequence.host_blocks)\n", ""),
    Mutation(
        "moves are made twice",
        KV,
        "        self._to_host, self._to_device, self._copies = [], [], []\n        return",
        "        return",
    ),
    Mutation(
        "host memory overflows", KV, " and blocks_for(sequence.num_computed) <= self.host.free_blocks", ""
    ),
    Mutation(
        "shared block written in place", KV, "not self.pool.is_writable(sequence.block_table[at])", "False"
    ),
    Mutation("copy forgotten", KV, "self._copies.append((shared, table[at]))", "self.pool.release([shared])"),
    Mutation(
        "copy source leaks", KV, "        self.pool.release([source for source, _ in self._copies])\n", ""
    ),
    Mutation("choices do not share the prompt", KV, "not parent.is_forkable", "True"),
    Mutation("choices read an unfinished prompt", SEQUENCE, " and self.num_computed >= self.prompt_len", ""),
    Mutation(
        "choice skips its own draw",
        KV,
        "sequence.prompt_len - 1 if is_fork",
        "sequence.prompt_len if is_fork",
    ),
    Mutation(
        "spare blocks ignored",
        KV,
        "if new + is_fork + revived + spare_blocks >",
        "if new + is_fork + revived >",
    ),
    Mutation(
        "revived blocks not counted",
        KV,
        "new + is_fork + revived + spare_blocks",
        "new + is_fork + spare_blocks",
    ),
]
