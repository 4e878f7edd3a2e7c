"""`make mutate SUITE=dispatch`: is every rule of the dispatcher held by a test?"""

import sys

from bench.mutate.mutation import Mutation, Suite, suite_run

DISPATCHER = "platform/dispatch/dispatcher.py"
FLEET = "platform/dispatch/fleet.py"
MEMBERS = "platform/dispatch/members.py"
BACKLOG = "platform/dispatch/backlog.py"
QUEUES = "platform/dispatch/queues.py"
SERVER = "platform/dispatch/server.py"
PREFILL = "platform/dispatch/prefill.py"
PREFIXES = "platform/dispatch/prefixes.py"
PLACEMENT = "platform/policy/placement.py"

MUTATIONS = [
    Mutation("other weights", MEMBERS, "if w.hello.digest == digest and w.takes_rows]", "if w.takes_rows]"),
    Mutation(
        "no arrival order",
        QUEUES,
        "request.arrived_ms, request.sequence,",
        "request.arrived_ms, -request.sequence,",
    ),
    Mutation("resubmitted goes last", DISPATCHER, "klass, now_ms - waited_ms,", "klass, now_ms,"),
    Mutation("batch first", QUEUES, "CLASSES = (INTERACTIVE, BATCH)", "CLASSES = (BATCH, INTERACTIVE)"),
    Mutation("batch overtakes", DISPATCHER, "return  # strict order", "break  # strict order"),
    Mutation("no prefill window", PLACEMENT, "< PREFILL_WINDOW_TOKENS", "< 10**9"),
    Mutation("a run is never reported", FLEET, "self._unreported_tokens -= self", "0 and self"),
    Mutation("a report covers every run", FLEET, "self._unreported[0][0] <= report.runs", "True"),
    Mutation("a run in flight is nothing", FLEET, "self._unreported_tokens += tokens", "pass"),
    Mutation("blocks stay claimed", FLEET, "self._unprefilled_blocks -= self._blocks(request)", "pass"),
    Mutation("placed blocks not counted", FLEET, "free_blocks - self._unprefilled_blocks", "free_blocks"),
    Mutation("row limit ignored", PLACEMENT, "replica.rows + choices <= replica.max_rows", "True"),
    Mutation("choices are one row", FLEET, "self._rows += request.choices", "self._rows += 1"),
    Mutation(
        "idle replica counts rows",
        PLACEMENT,
        "(idle or replica.rows + choices <=",
        "(replica.rows + choices <=",
    ),
    Mutation("rows on a prefill worker", MEMBERS, "== digest and w.takes_rows]", "== digest]"),
    Mutation(
        "prefill worker serves",
        MEMBERS,
        "self.workers.values() if w.takes_rows}",
        "self.workers.values()}",
    ),
    Mutation("anybody helps", PREFILL, "other.hello.serves == PREFILL", "other is not worker"),
    Mutation("helper of other numbers", PREFILL, ") == weights", ") is not None"),
    Mutation("silent helper", PREFILL, "other.may_take(now_ms)", "True"),
    Mutation("helped though it reads no cache", PREFILL, " or submit.sampling.prompt_logprobs >= 0", ""),
    Mutation("held prefixes ignored", PREFILL, "worker.prefixes.cached_tokens(submit)", "0"),
    Mutation("held prefixes kept", PREFIXES, "self._held.difference_update(report.evicted)", "pass"),
    Mutation("held prefixes not forgotten", PREFIXES, "self._held.clear()", "pass"),
    Mutation("prefix with a hole", PREFIXES, "                    break", "                    continue"),
    Mutation(
        "short prompts move",
        PLACEMENT,
        "if prompt_tokens - cached_tokens < PREFILL_REMOTE_TOKENS:",
        "if False:",
    ),
    Mutation("helper far behind", PLACEMENT, "r.pending_tokens < PREFILL_BACKLOG_TOKENS", "True"),
    Mutation("helper never free", FLEET, "helper.pending_tokens -= request.prompt_tokens", "pass"),
    Mutation("helped prompts fill the window", FLEET, "if helper is None else 0", ""),
    Mutation("no pool for long prompts", PLACEMENT, "return is_other_pool, replica", "return replica"),
    Mutation("idle replica must have room", PLACEMENT, "idle = replica.rows == 0", "idle = False"),
    Mutation(
        "unservable prompt waits", DISPATCHER, "if not any(is_servable", "if False and not any(is_servable"
    ),
    Mutation(
        "suspect cannot serve", DISPATCHER, "for w in holders):", "for w in holders if w.may_take(now_ms)):"
    ),
    Mutation(
        "suspect gets requests",
        FLEET,
        "not self.draining and not self.is_suspect(now_ms)",
        "not self.draining",
    ),
    Mutation("draining gets requests", FLEET, "return not self.draining and", "return"),
    Mutation("drain is not heard", FLEET, "self.draining or report.draining", "self.draining"),
    Mutation("full is asked at once", FLEET, "and now_ms >= self.paused_until_ms", ""),
    Mutation("expired request runs", DISPATCHER, "if request.deadline_ms <= now_ms:", "if False:"),
    Mutation("expired request stays", BACKLOG, "if r.deadline_ms <= now_ms", "if False"),
    Mutation(
        "whole deadline again", DISPATCHER, "deadline_ms=left_ms)", "deadline_ms=request.submit.deadline_ms)"
    ),
    Mutation("no queue bound", DISPATCHER, ">= self._limits.queue_depth", ">= 10**9"),
    Mutation("nobody serves: waits", BACKLOG, "if unserved_ms >= grace_ms:", "if False:"),
    Mutation(
        "cancel leaves the queue",
        DISPATCHER,
        "            self._backlog.remove(request)\n            self._end(request, cancel.reason",
        "            self._end(request, cancel.reason",
    ),
    Mutation(
        "cancel not sent on",
        DISPATCHER,
        "worker.peer.send(CancelRow(row=request.row,",
        "(CancelRow(row=request.row,",
    ),
    Mutation("refusal forgets cancel", DISPATCHER, "if request.cancel_reason:", "if False:"),
    Mutation("refused is dropped", DISPATCHER, "self._backlog.push(request)", "pass"),
    Mutation(
        "refused stays placed",
        DISPATCHER,
        'request.worker, request.prefilled = "", False',
        "request.prefilled = False",
    ),
    Mutation(
        "submitted twice runs twice",
        DISPATCHER,
        "if known := gateway.rows.get(row):",
        "if (known := gateway.rows.get(row)) and False:",
    ),
    Mutation("second answer withheld", DISPATCHER, "if known.worker:  #", "if False:  #"),
    Mutation("ended row stays placed", DISPATCHER, "for row in report.ended:", "for row in []:"),
    Mutation("gateway keeps ended rows", FLEET, "del self.rows[request.row]", "pass"),
    Mutation(
        "gateway loses other's row",
        FLEET,
        "if self.rows.get(request.row) is request:",
        "if request.row in self.rows:",
    ),
    Mutation(
        "lost worker keeps rows",
        DISPATCHER,
        "                gateway.release(request)\n        self._members",
        "                pass\n        self._members",
    ),
    Mutation("lost worker untold", DISPATCHER, "self._members.tell_gateways(WorkerDown(", "(WorkerDown("),
    Mutation("silent worker lives", FLEET, "> DEAD_MS", "> 10**9"),
    Mutation("silent worker stays connected", DISPATCHER, "worker.peer.abort(cause)", "pass"),
    Mutation("own absence is silence", MEMBERS, "if absent_ms <= 0:", "if True:"),
    Mutation("own absence spends grace", MEMBERS, "gateway.lost_ms += absent_ms", "pass"),
    Mutation(
        "lost gateway kept",
        MEMBERS,
        "elif now_ms - gateway.lost_ms > self",
        "elif now_ms - gateway.lost_ms > 10**9 + self",
    ),
    Mutation("no time to return", MEMBERS, "> self._limits.gateway_grace_ms", "> -1"),
    Mutation("silent gateway kept", MEMBERS, "> self._limits.gateway_silence_ms", "> 10**9"),
    Mutation("forgotten gateway connected", DISPATCHER, 'gateway.peer.abort("silent for too long")', "pass"),
    Mutation(
        "forgotten gateway's queue",
        DISPATCHER,
        "        for request in gateway.rows.values():\n            self._backlog.remove(request)\n",
        "",
    ),
    Mutation("workers not told", DISPATCHER, "self._members.tell_workers(GatewayGone(", "(GatewayGone("),
    Mutation("running rows not believed", DISPATCHER, "if now_ms > trusted_until_ms or", "if True or"),
    Mutation("lost rows believed", DISPATCHER, "if now_ms > trusted_until_ms or (", "if ("),
    Mutation("row believed in two places", DISPATCHER, "or (known and known.worker)", ""),
    Mutation(
        "row believed stays queued",
        DISPATCHER,
        "            self._backlog.remove(known)\n",
        "            pass\n",
    ),
    Mutation("believed choices are one row", DISPATCHER, "request.adopted_choices = max(1, choices)", "pass"),
    Mutation("absent gateway never given up", DISPATCHER, "lost_ms=trusted_until_ms)", "lost_ms=1e12)"),
    Mutation(
        "closing connection eats requests",
        DISPATCHER,
        "if not worker.peer.send(run):",
        "if worker.peer.send(run) is None:",
    ),
    Mutation("twin takes over", MEMBERS, "if is_other and not other.is_silent(now_ms):", "if False:"),
    Mutation(
        "absurd ages",
        DISPATCHER,
        "min(max(submit.waited_ms, 0), self._limits.max_wait_ms)",
        "submit.waited_ms",
    ),
    Mutation("versions pile up", BACKLOG, "self._forget(digest)", "pass"),
    Mutation("old connection wins", SERVER, "                del self._peers[other]\n", ""),
    Mutation(
        "closed peer stays",
        SERVER,
        "peer = self._peers.pop(connection, None)\n        if",
        "peer = self._peers.get(connection)\n        if",
    ),
    Mutation("stranger stays", SERVER, "self._strangers.pop(connection, None)\n        for", "for"),
]

SUITE = Suite(
    name="dispatch",
    folders=["gpuworker", "platform/config", "platform/dispatch", "platform/policy", "tests/dispatch"],
    tests=[f"tests/dispatch/test_{name}.py" for name in ("dispatcher", "prefill", "recovery", "simulation")],
    mutations=MUTATIONS,
)

if __name__ == "__main__":
    sys.exit(suite_run(SUITE))
