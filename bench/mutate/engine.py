"""`make mutate SUITE=engine`: is every rule of the engine held by a test that needs no torch?"""

import sys

from bench.mutate.mutation import Mutation, Suite, suite_run

POOL = "gpuworker/engine/block_pool.py"
CACHE = "gpuworker/engine/cached_blocks.py"
PREFIX = "platform/policy/prefix.py"
KV = "gpuworker/engine/kv_manager.py"
SCHEDULER = "gpuworker/engine/scheduler.py"
BATCH = "gpuworker/engine/batch.py"
FLOWS = "gpuworker/engine/flows.py"
BUDGET = "gpuworker/engine/budget.py"
SEQUENCE = "gpuworker/engine/sequence.py"
PREEMPTION = "gpuworker/engine/preemption.py"
ENGINE = "gpuworker/engine/engine.py"
ISOLATION = "gpuworker/engine/isolation.py"

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
        '            if not self._references[block]:\n                raise PoolCorrupt(f"block {block} was released',
        '            if False:\n                raise PoolCorrupt(f"block {block} was released',
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
        '        if not self._references[block]:\n            raise PoolCorrupt(f"block {block} was published by nobody")\n',
        "",
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
    Mutation("published under the next key", KV, "[at]\n            tokens", "[-at]\n            tokens"),
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
    Mutation("dropped KV counts as computed", KV, "        sequence.num_computed = 0\n", ""),
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

STEP_MUTATIONS = [
    Mutation("watermark removed", BATCH, "max(2, self.kv.pool.blocks // 64, active) if active else 0", "0"),
    Mutation("watermark for a lone row", BATCH, " if active else 0", ""),
    Mutation(
        "oldest row gives way",
        BATCH,
        "newest_first = sorted(rows, key=self.rows.index, reverse=True)",
        "newest_first = sorted(rows, key=self.rows.index)",
    ),
    Mutation(
        "least served gives way", BATCH, "self._flows.time(row.flow)),", "-self._flows.time(row.flow)),"
    ),
    Mutation("held rows stay", BATCH, "(row.held, row.flow in self.over,", "(row.flow in self.over,"),
    Mutation(
        "planned row gives way",
        BATCH,
        "self._victims(row for row in self.rows if row.key not in self.planned)[0]",
        "self._victims(self.rows)[0]",
    ),
    Mutation("preempted goes last", FLOWS, "appendleft(sequence)", "append(sequence)"),
    Mutation("preemptions not counted", BATCH, "        self.preemptions += 1\n", ""),
    Mutation("slot lost", BATCH, "        self._free_slots.append(sequence.slot)\n", ""),
    Mutation("slot given twice", BATCH, "self._free_slots.pop()", "self._free_slots[-1]"),
    Mutation("stale block table", BATCH, "        sequence.table_told = 0\n", ""),
    Mutation(
        "cancel forgotten in flight",
        SCHEDULER,
        "        sequence.reason, sequence.message = reason, message\n        if key not in self._in_flight:",
        "        if key not in self._in_flight:\n            sequence.reason, sequence.message = reason, message",
    ),
    Mutation(
        "cancel frees blocks in flight",
        SCHEDULER,
        "        if key not in self._in_flight:\n",
        "        if True:\n",
    ),
    Mutation(
        "cancelled row goes on",
        SCHEDULER,
        "            if not sequence.reason:\n                self._advance",
        "            if True:\n                self._advance",
    ),
    Mutation("ended row keeps its blocks", SCHEDULER, "        self.kv.release(sequence)\n", ""),
    Mutation(
        "ended row stays in the queue",
        SCHEDULER,
        "            self._flows.take(sequence)\n",
        "            pass\n",
    ),
    Mutation("deadline unchecked", SCHEDULER, "if row.deadline_ms <= now_ms]", "if False]"),
    Mutation(
        "failure ignored", SCHEDULER, "if not sequence.reason and row.key in result.failed:", "if False:"
    ),
    Mutation(
        "samples in the middle of a prompt", SCHEDULER, "start + count == len(sequence.token_ids) and", ""
    ),
    Mutation(
        "max_tokens off by one",
        SCHEDULER,
        "sequence.output_len >= sequence.max_tokens",
        "sequence.output_len > sequence.max_tokens",
    ),
    Mutation("stop ids ignored", SCHEDULER, "sampled.token in sequence.stop_ids", "False"),
    Mutation("prompt logprobs told twice", SCHEDULER, "sampled.prompt[max(seen, 0) :]", "sampled.prompt"),
    Mutation(
        "pause forgets a sequence",
        SCHEDULER,
        "budget.has_room_for(sequence) or budget.take_overdue(sequence)",
        "budget.has_room_for(sequence)",
    ),
    Mutation("pauses not counted", SCHEDULER, "self.paused += sequence.status is Status.RUNNING", "pass"),
    Mutation(
        "longest pause goes last",
        SCHEDULER,
        "sorted(rows, key=lambda row: row.last_run_ms)",
        "sorted(rows, key=lambda row: -row.last_run_ms)",
    ),
    Mutation(
        "nothing is kept for the overdue",
        BUDGET,
        "        self._kept_ms = max(overdue, YIELDING_FLOOR * total)",
        "        self._kept_ms = 0.0",
    ),
    Mutation(
        "released row stays held",
        FLOWS,
        "            sequence.held = held\n",
        "            sequence.held = True\n",
    ),
    Mutation("held row is computed", BATCH, "[row for row in self.rows if not row.held]", "list(self.rows)"),
    Mutation(
        "held row is admitted",
        SEQUENCE,
        "if self.held or self.waits_for_grammar:",
        "if self.waits_for_grammar:",
    ),
    Mutation(
        "budget ignored", BUDGET, "most = max(self._max_tokens - self._prefill, 0)", "most = self._max_tokens"
    ),
    Mutation(
        "decodes cost nothing",
        BUDGET,
        "        self._left_ms -= self.decode_ms(sequence)\n",
        "        pass\n",
    ),
    Mutation("prompts cost nothing", BUDGET, "        self._left_ms -= self.chunk_ms(start, count)\n", ""),
    Mutation("no least progress of prompts", BUDGET, "if self._is_minimum_due or", "if False or"),
    Mutation(
        "nobody is over its share",
        FLOWS,
        "return over_share(interactive, weights, capacity) | ",
        "return frozenset() | ",
    ),
    Mutation("batch does not yield", FLOWS, " | (demands.keys() - interactive.keys())", ""),
    Mutation("most served flow first", FLOWS, "self._time.of(flow), flow))", "-self._time.of(flow), flow))"),
    Mutation("work is not charged", FLOWS, "        self._time.charge(flow, cost_ms)\n", "        pass\n"),
    Mutation(
        "weights ignored",
        FLOWS,
        "self._time.activate(flow, sequence.weight)",
        "self._time.activate(flow, 1.0)",
    ),
    Mutation(
        "swap whatever it costs",
        PREEMPTION,
        "return there_and_back_ms < self._cost().token_ms * computed_tokens",
        "return True",
    ),
    Mutation(
        "forced way ignored", PREEMPTION, 'return self._mode == "swap"', 'return self._mode == "recompute"'
    ),
]

ENGINE_MUTATIONS = [
    Mutation(
        "inbox read once",
        ENGINE,
        "        drain_inbox()\n\n        self._counters.batch_rows",
        "\n        self._counters.batch_rows",
    ),
    Mutation("moves not made", ENGINE, "            self._runner.move(plan.moves)\n", ""),
    Mutation(
        "cancel of one choice only",
        ENGINE,
        "            for key in request.keys:\n                self._scheduler.cancel",
        "            for key in request.keys[:1]:\n                self._scheduler.cancel",
    ),
    Mutation(
        "hold of one choice only",
        ENGINE,
        "            for key in request.keys:\n                self._scheduler.hold",
        "            for key in request.keys[:1]:\n                self._scheduler.hold",
    ),
    Mutation("request's salt dropped", ENGINE, ", submit.cache_salt", ""),
    Mutation("tenant not in the root", ENGINE, "cache.secret, submit.tenant,", 'cache.secret, "",'),
    Mutation("max_tokens beyond the bound", ENGINE, "min(max_tokens, room)", "max_tokens"),
    Mutation("mates fail with the offender", ISOLATION, "if len(plan.rows) == 1:", "if True:"),
    Mutation(
        "starts lost in bisection", ISOLATION, "[start for start in plan.starts if start.slot in slots]", "[]"
    ),
]

FAST = [
    "block_pool",
    "prefix_cache",
    "block_pool_properties",
    "cases",
    "cases_of_requests",
    "scheduler",
    "choices",
    "preemption",
    "engine",
    "fair_steps",
]

SUITE = Suite(
    name="engine",
    folders=["gpuworker", "modelsvc", "platform/config", "platform/policy", "tests/engine", "tests/policy"],
    tests=[
        "tests/policy/test_prefix.py",
        *(f"tests/engine/test_{name}.py" for name in FAST),
        "tests/engine/test_scheduler_properties.py",  # slow: last
    ],
    mutations=[*POOL_MUTATIONS, *KV_MUTATIONS, *STEP_MUTATIONS, *ENGINE_MUTATIONS],
)

if __name__ == "__main__":
    sys.exit(suite_run(SUITE))
