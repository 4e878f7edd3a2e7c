"""Ways to break the composition of steps, and the engine around it. `bench.mutate.engine` runs them."""

from bench.mutate.mutation import Mutation

COMPOSITION = "gpuworker/engine/composition.py"
SCHEDULER = "gpuworker/engine/scheduler.py"
BATCH = "gpuworker/engine/batch.py"
FLOWS = "gpuworker/engine/flows.py"
BUDGET = "gpuworker/engine/budget.py"
SEQUENCE = "gpuworker/engine/sequence.py"
PREEMPTION = "gpuworker/engine/preemption.py"
ENGINE = "gpuworker/engine/engine.py"
ISOLATION = "gpuworker/engine/isolation.py"
TIME = "gpuworker/engine/machine_time.py"

STEP_MUTATIONS = [
    Mutation("watermark removed", BATCH, "max(2, self.kv.pool.blocks // 64, active) if active else 0", "0"),
    Mutation("watermark for a lone row", BATCH, " if active else 0", ""),
    Mutation(
        "oldest row gives way",
        BATCH,
        "newest_first = list(rows)[::-1]",
        "newest_first = list(rows)",
    ),
    Mutation("least served gives way", BATCH, "BATCH, time(row.flow)),", "BATCH, -time(row.flow)),"),
    Mutation(
        "held rows stay", BATCH, "(row.held, row.flow in self.shares.over,", "(row.flow in self.shares.over,"
    ),
    Mutation(
        "planned row gives way",
        BATCH,
        "self._victims(row for row in self.rows if row.key not in self.planned)[0]",
        "self._victims(self.rows)[0]",
    ),
    Mutation(
        "preempted goes last", FLOWS, ".move_to_end(sequence.key, last=False)", ".move_to_end(sequence.key)"
    ),
    Mutation("preemptions not counted", BATCH, "        self.preemptions += 1\n", ""),
    Mutation("slot lost", BATCH, "        self._free_slots.append(sequence.slot)\n", ""),
    Mutation("slot given twice", BATCH, "self._free_slots.pop()", "self._free_slots[-1]"),
    Mutation("stale block table", BATCH, "        sequence.table_told = 0\n", ""),
    Mutation(
        "cancel forgotten in flight",
        SCHEDULER,
        "sequence.reason, sequence.message = reason, message\n        if key not in self._in_flight:",
        "if key not in self._in_flight:\n            sequence.reason, sequence.message = reason, message",
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
    Mutation("deadline unchecked", SCHEDULER, "self._deadlines.take_expired(now_ms)", "[]"),
    Mutation(
        "failure ignored", SCHEDULER, "if not sequence.reason and row.key in result.failed:", "if False:"
    ),
    Mutation(
        "samples in the middle of a prompt", COMPOSITION, "start + count == len(sequence.token_ids) and", ""
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
        COMPOSITION,
        "self.paused += sequence.status is Status.RUNNING",
        "self._batch.rows.remove(sequence)",
    ),
    Mutation("pauses not counted", COMPOSITION, "self.paused += sequence.status is Status.RUNNING", "pass"),
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
        "        self._left_ms -= cost_ms\n        return cost_ms",
        "        return cost_ms",
    ),
    Mutation(
        "prompts cost nothing",
        BUDGET,
        "        self._left_ms -= cost_ms\n        self._prefill",
        "        self._prefill",
    ),
    Mutation("no least progress of prompts", BUDGET, "if self._is_minimum_due or", "if False or"),
    Mutation(
        "nobody is over its share",
        FLOWS,
        "over_share(sharing, weights, capacity, least=1) |",
        "frozenset[Flow]() |",
    ),
    Mutation(
        "batch does not yield",
        FLOWS,
        "Shares((over | batch) - self._catching_up, parts)",
        "Shares(over - self._catching_up, parts)",
    ),
    Mutation("lone flow yields", FLOWS, "if len(sharing) > 1:", "if sharing:"),
    Mutation("the fleet's word is ignored", FLOWS, " | (self.over_in_fleet & sharing.keys())", ""),
    Mutation(
        "the fleet's word is above all",
        FLOWS,
        "(over | batch) - self._catching_up",
        "((over | batch) - self._catching_up) | (self.over_in_fleet & sharing.keys())",
    ),
    Mutation(
        "decodes are charged to nobody",
        COMPOSITION,
        "            self._add_cost(sequence.flow, cost_ms)\n",
        "",
    ),
    Mutation("charged without what lies between steps", TIME, "ended_ms if left_work else None", "None"),
    Mutation("a step charged to each of its flows", TIME, "        given_us = until_us\n", ""),
    Mutation(
        "a step rounded by itself",
        TIME,
        "round(ended_ms * 1000) - round(since_ms * 1000)",
        "round((ended_ms - since_ms) * 1000)",
    ),
    Mutation(
        "one row is too much",
        FLOWS,
        "over_share(sharing, weights, capacity, least=1)",
        "over_share(sharing, weights, capacity)",
    ),
    Mutation(
        "a part is nothing", BATCH, "if standing.running[flow] >= self.shares.parts.get(flow, 0):", "if True:"
    ),
    Mutation("entitled whatever it had", BATCH, "or self._flows.time(flow) <= standing.most_us", "or True"),
    Mutation("excess stays", BATCH, "if stays[row.flow] > parts.get(row.flow, 0) + 1:", "if False:"),
    Mutation(
        "batch waits for ever",
        FLOWS,
        "starved | self._starved(batch, within or sharing.keys())",
        "starved",
    ),
    Mutation(
        "yields for ever",
        FLOWS,
        "if least_us - self.time(flow) > ",
        "if False and least_us - self.time(flow) > ",
    ),
    Mutation("most served flow first", FLOWS, "self._time.of(flow), flow)", "-self._time.of(flow), flow)"),
    Mutation(
        "slot without a token", COMPOSITION, "self._add_chunk(sequence, least=1)", "self._add_chunk(sequence)"
    ),
    Mutation(
        "decodes charged twice", COMPOSITION, "            sequence.charged = len(sequence.token_ids)\n", ""
    ),
    Mutation("work is not charged", FLOWS, "        self._time.charge(flow, cost_ms)\n", "        pass\n"),
    Mutation(
        "weights ignored",
        FLOWS,
        "self._time.activate(flow, self._weights[flow])",
        "self._time.activate(flow, 1.0)",
    ),
    Mutation(
        "swap whatever it costs",
        PREEMPTION,
        "return there_and_back_ms < self._cost().chunk_ms(computed_tokens, start=0)",
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
        "ended_ms = now_ms()\n        drain_inbox()\n",
        "ended_ms = now_ms()\n",
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
