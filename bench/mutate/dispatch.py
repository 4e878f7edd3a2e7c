"""`make mutate SUITE=dispatch`: is every rule of the dispatcher held by a test?"""

import sys

from bench.mutate.dispatch_policies import POLICIES
from bench.mutate.mutation import Mutation, Suite, suite_run

DISPATCHER = "platform/dispatch/dispatcher.py"
SUBMITTING = "platform/dispatch/submitting.py"
REQUESTS = "platform/dispatch/requests.py"
REPORTING = "platform/dispatch/reporting.py"
JOINING = "platform/dispatch/joining.py"
PLACING = "platform/dispatch/placing.py"
ANNOUNCING = "platform/dispatch/announcing.py"
ANSWERS = "platform/dispatch/answers.py"
VIEWS = "platform/dispatch/views.py"
FLEET = "platform/dispatch/fleet.py"
MEMBERS = "platform/dispatch/members.py"
VERSIONS = "platform/dispatch/versions.py"
SERVER = "platform/dispatch/server.py"
PREFILL = "platform/dispatch/prefill.py"

MUTATIONS = [
    Mutation("a run is never reported", FLEET, "self._unreported_tokens -= self", "self"),
    Mutation("a report covers every run", FLEET, "self._unreported[0][0] <= report.runs", "True"),
    Mutation("a run in flight is nothing", FLEET, "self._unreported_tokens += tokens", "pass"),
    Mutation("blocks stay claimed", FLEET, "self._unprefilled_blocks -= self._blocks(request)", "pass"),
    Mutation("placed blocks not counted", FLEET, "free_blocks - self._unprefilled_blocks", "free_blocks"),
    Mutation("choices are one row", FLEET, "self._rows += request.choices", "self._rows += 1"),
    Mutation("anybody helps", PREFILL, "other.hello.serves == PREFILL", "other is not worker"),
    Mutation("helper of other numbers", PREFILL, ") == weights", ") is not None"),
    Mutation("silent helper", PREFILL, "other.may_take(now_ms)", "True"),
    Mutation("helped though it reads no cache", PREFILL, " or submit.sampling.prompt_logprobs >= 0", ""),
    Mutation("held prefixes ignored", PREFILL, "worker.prefixes.cached_tokens(submit)", "0"),
    Mutation("helper never free", FLEET, "helper.pending_tokens -= request.prompt_tokens", "pass"),
    Mutation("helped prompts fill the window", FLEET, "if helper is None else 0", ""),
    Mutation("suspect gets requests", FLEET, "is_full or self.is_suspect(now_ms) or", "is_full or"),
    Mutation("draining gets requests", FLEET, "not (self.draining or is_full", "not (is_full"),
    Mutation("drain is not heard", FLEET, "self.draining or report.draining", "self.draining"),
    Mutation("full is asked at once", FLEET, " or now_ms < self.paused_until_ms)", ")"),
    Mutation(
        "whole deadline again",
        PLACING,
        "deadline_ms=max(1, int(request.deadline_ms - now_ms)),",
        "deadline_ms=request.submit.deadline_ms,",
    ),
    Mutation(
        "cancel leaves the queue",
        SUBMITTING,
        "            self._versions.unqueue(request)\n",
        "",
    ),
    Mutation(
        "cancel not sent on",
        SUBMITTING,
        "worker.peer.send(CancelRow(row=request.row,",
        "(CancelRow(row=request.row,",
    ),
    Mutation("refusal forgets cancel", REPORTING, "is not None and not request.cancel_reason", "is not None"),
    Mutation("refused is dropped", REPORTING, "version.queue.requeue(request.waiting, now_ms)", "pass"),
    Mutation(
        "forgotten attempt is answered", REPORTING, "rows.get(request.row) is request", "rows is not None"
    ),
    Mutation("reason of a refusal is lost", REPORTING, "message, reason=refused.code", "message"),
    Mutation(
        "refused stays placed",
        REPORTING,
        'request.worker, request.prefilled = "", False',
        "request.prefilled = False",
    ),
    Mutation(
        "submitted twice runs twice",
        SUBMITTING,
        "if known := gateway.rows.get(row):",
        "if (known := gateway.rows.get(row)) and False:",
    ),
    Mutation("second answer withheld", SUBMITTING, "if known.worker:  #", "if False:  #"),
    Mutation("ended row stays placed", REPORTING, "for row in report.ended:", "for row in []:"),
    Mutation("gateway keeps ended rows", FLEET, "del self.rows[request.row]", "pass"),
    Mutation(
        "lost worker keeps rows",
        JOINING,
        "                gateway.release(request)\n        version",
        "                pass\n        version",
    ),
    Mutation("lost worker untold", JOINING, "self._members.tell_gateways(down)", "pass"),
    Mutation("a crash is not told", JOINING, "has_closed and not worker.draining", "False"),
    Mutation("who stops has crashed", JOINING, "has_closed and not worker.draining", "has_closed"),
    Mutation("a worker whose step hangs goes on", DISPATCHER, "if report.hung:", "if False:"),
    Mutation("a moved request is refused", SUBMITTING, "if submit.moves else", "if False else"),
    Mutation("silent worker lives", FLEET, "> DEAD_MS", "> 10**9"),
    Mutation("silent worker stays connected", JOINING, "worker.peer.abort(cause)", "pass"),
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
    Mutation("forgotten gateway connected", JOINING, 'gateway.peer.abort("silent for too long")', "pass"),
    Mutation(
        "forgotten gateway's queue",
        JOINING,
        "        for request in gateway.rows.values():\n            self._versions.unqueue(request)\n",
        "",
    ),
    Mutation("workers not told", JOINING, "self._members.tell_workers(GatewayGone(", "(GatewayGone("),
    Mutation("running rows not believed", JOINING, "if now_ms > self._trusted_until_ms or", "if True or"),
    Mutation("lost rows believed", JOINING, "if now_ms > self._trusted_until_ms or (", "if ("),
    Mutation("row believed in two places", JOINING, "or (known and known.worker)", ""),
    Mutation(
        "row believed stays queued",
        JOINING,
        "            self._versions.unqueue(known)\n",
        "            pass\n",
    ),
    Mutation("believed choices are one row", JOINING, "request.adopted_choices = max(1, choices)", "pass"),
    Mutation("absent gateway never given up", JOINING, "lost_ms=self._trusted_until_ms)", "lost_ms=1e12)"),
    Mutation(
        "closing connection eats requests",
        PLACING,
        "if not worker.peer.send(",
        "if None is worker.peer.send(",
    ),
    Mutation("twin takes over", MEMBERS, "if is_other and not other.is_silent(now_ms):", "if False:"),
    Mutation(
        "absurd ages",
        REQUESTS,
        "min(max(submit.waited_ms, 0), limits.max_wait_ms)",
        "submit.waited_ms",
    ),
    Mutation("resubmitted goes last", REQUESTS, "now_ms - waited_ms,", "now_ms,"),
    Mutation("tenants share a flow", REQUESTS, "flow=Flow(submit.tenant,", 'flow=Flow("",'),
    Mutation("classes share a flow", REQUESTS, "submit.klass if submit.klass in CLASSES else", ""),
    Mutation("weights are all one", REQUESTS, "weight=_weight(submit.weight)", "weight=1.0"),
    Mutation("weights that are none", REQUESTS, "said > 0 and math.isfinite(said)", "True"),
    Mutation("output is not learned", REQUESTS, "if submit.expected_tokens > 0", "if False"),
    Mutation("holder of other weights", JOINING, "version.holders[hello.incarnation] = worker", "pass"),
    Mutation(
        "rows on a prefill worker",
        JOINING,
        "        if worker.takes_rows:\n            version",
        "        if True:\n            version",
    ),
    Mutation(
        "too long for the newcomer",
        JOINING,
        "            self._too_long_end(version)\n            self._members",
        "            self._members",
    ),
    Mutation(
        "too long for those left",
        JOINING,
        "            version.queue.replica_gone(incarnation)\n            self._too_long_end(version)",
        "            version.queue.replica_gone(incarnation)",
    ),
    Mutation("replica is not gone", JOINING, "version.queue.replica_gone(incarnation)", "pass"),
    Mutation("joins without shares", JOINING, "worker_inform(worker, version)", "pass"),
    Mutation("joins without pressure", JOINING, "gateway_inform(gateway, self._versions)", "pass"),
    Mutation(
        "expired request is lost",
        PLACING,
        "self._answers.late(request_of(waiting), version.queue, now_ms)",
        "pass",
    ),
    Mutation("pause has no end", PLACING, "version.replicas_refresh(now_ms)", "pass"),
    Mutation(
        "urgent batch runs as batch", PLACING, "klass=waiting.flow.klass,", "klass=request.submit.klass,"
    ),
    Mutation("placed twice counts", PLACING, "        version.replica_update(worker, now_ms)\n\n\n", "\n\n"),
    Mutation("prefilled is not heard", REPORTING, "version.queue.prefilled(request)", "pass"),
    Mutation(
        "machine time is not heard",
        REPORTING,
        "version.queue.worked(incarnation, Flow(",
        "print((incarnation, Flow(",
    ),
    Mutation(
        "ended row stays in the queue",
        REPORTING,
        "version.queue.ended(request, now_ms, was_cut=was_cut)",
        "pass",
    ),
    Mutation(
        "report is not heard",
        REPORTING,
        "worker.takes_rows:\n            version.replica_update(worker, now_ms)",
        "worker.takes_rows:\n            pass",
    ),
    Mutation("cost is not heard", FLEET, "self.cost = StepCost(*report.cost)", "pass"),
    Mutation("row limit is not heard", FLEET, "row_limit=report.row_limit if report else 0,", "row_limit=0,"),
    Mutation("closed replica gets requests", FLEET, "takes_more=self.takes_more,", "takes_more=True,"),
    Mutation("shares told once", ANNOUNCING, "over != version.over or is_due", "over != version.over"),
    Mutation("shares told always", ANNOUNCING, "over != version.over or is_due", "True"),
    Mutation("shares of every model", ANNOUNCING, "if worker.hello.digest == version.digest:", "if True:"),
    Mutation(
        "end of shares untold",
        ANNOUNCING,
        "if over != version.over or",
        "if over and over != version.over or",
    ),
    Mutation(
        "pressure told once", ANNOUNCING, "if has_changed or (version", "if has_changed or False and (version"
    ),
    Mutation(
        "end of pressure untold",
        ANNOUNCING,
        "            has_changed = True",
        "            has_changed = bool(change.after)",
    ),
    Mutation(
        "pressure that is none told",
        ANNOUNCING,
        "        if version.queue.level:\n            gateway",
        "        if True:\n            gateway",
    ),
    Mutation("refusal names no limit", ANSWERS, "name=refusal.name,", ""),
    Mutation("refusal keeps the request", ANSWERS, "            gateway.release(request)\n", ""),
    Mutation("refusal without a time", ANSWERS, "retry_after_ms=refusal.retry_after_ms,", ""),
    Mutation("too long has no reason", ANSWERS, 'reason="too_long" if never_fits else ""', 'reason=""'),
    Mutation(
        "least work is shown",
        VIEWS,
        "key=lambda pair: (pair[0].queued_us,",
        "key=lambda pair: (-pair[0].queued_us,",
    ),
    Mutation("nobody serves: waits", VERSIONS, "found.append(version)", "pass"),
    Mutation("nobody serves: stays queued", DISPATCHER, "version.queue.remove(request)", "pass"),
    Mutation("versions pile up", VERSIONS, "del self._versions[version.digest]", "pass"),
    Mutation(
        "served again, still given up", VERSIONS, "                version.unserved_since_ms = None\n", ""
    ),
    Mutation("no tick for the queue", DISPATCHER, "version.queue.tick(now_ms), now_ms", "[], now_ms"),
    Mutation("old connection wins", SERVER, "                del self._peers[other]\n", ""),
    Mutation(
        "closed peer stays",
        SERVER,
        "peer = self._peers.pop(connection, None)\n        if",
        "peer = self._peers.get(connection)\n        if",
    ),
    Mutation("stranger stays", SERVER, "self._strangers.pop(connection, None)\n        for", "for"),
]

TESTS = ("dispatcher", "admission", "announcing", "prefill", "recovery", "routing", "sharing", "simulation")
POLICY_TESTS = ("admission", "model_queue", "router", "router_index", "router_in_queue")
SUITE = Suite(
    name="dispatch",
    folders=[
        *("gpuworker", "platform/config", "platform/dispatch", "platform/policy"),
        *("tests/dispatch", "tests/policy"),
    ],
    tests=[
        *(f"tests/dispatch/test_{name}.py" for name in TESTS),
        *(f"tests/policy/test_{name}.py" for name in POLICY_TESTS),
    ],
    mutations=[*MUTATIONS, *POLICIES],
)

if __name__ == "__main__":
    sys.exit(suite_run(SUITE))
