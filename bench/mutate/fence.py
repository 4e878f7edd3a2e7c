"""`make mutate SUITE=fence`: does it show within 200 histories when a layer of the fence is missing?"""

import sys

from bench.mutate.mutation import Mutation, Suite, suite_run

ROWS = "gpuworker/row_table.py"
GREETING = "gpuworker/greeting.py"
REPLICAS = "platform/gateway/upstream/replicas.py"
STREAM = "platform/gateway/upstream/stream.py"
FAILOVER = "platform/gateway/upstream/failover.py"
DISPATCHER = "platform/dispatch/dispatcher.py"
FLEET = "platform/dispatch/fleet.py"
JOINING = "platform/dispatch/joining.py"
REPORTING = "platform/dispatch/reporting.py"
PLACER = "platform/policy/placer.py"
QUEUE = "platform/policy/model_queue.py"
ROUTES = "modelsvc/routes.py"

ENDED = "self.ended if placed.is_prefilled"

MUTATIONS = [
    Mutation("worker: digest", ROWS, "if submit.digest != digest:", "if False:"),
    Mutation("worker: epoch", ROWS, 'if run.worker not in ("", self._hello.incarnation):', "if False:"),
    Mutation("warming is ready", FLEET, " or self.report.warming)", ")"),
    Mutation(
        "worker: whom a greeting means", GREETING, 'if message.to not in ("", incarnation):', "if False:"
    ),
    Mutation("gateway: digest of a frame", REPLICAS, " or up.digest != stream.submit.digest", ""),
    Mutation("gateway: digest of a welcome", REPLICAS, "if welcome.digest != up.digest:", "if False:"),
    Mutation("gateway: epoch", REPLICAS, "if welcome.incarnation != up.incarnation:", "if False:"),
    Mutation(
        "gateway: another replica goes on", REPLICAS, "        if stream.is_heard:\n", "        if False:\n"
    ),
    Mutation("gateway: what ended goes on", REPLICAS, "if stream.is_settled or up.digest", "if up.digest"),
    Mutation(
        "gateway: misplaced, and left there",
        REPLICAS,
        "                    self._misplaced(stream, up)",
        "                    pass",
    ),
    Mutation("gateway: moved is lost", REPLICAS, '        if end.reason == "moved":', "        if False:"),
    Mutation("gateway: silence is borne", REPLICAS, "silence_s=WORKER_SILENCE_S", "silence_s=0.0"),
    Mutation("gateway: a gap ends it", REPLICAS, "        if stream.may_move:", "        if False:"),
    Mutation(
        "a number is used twice", FAILOVER, "stream.move(self._sid_next(), ", "stream.move(stream.sid, "
    ),
    Mutation(
        "emitted ids are forgotten", STREAM, "prompt = self.prompt_bytes + ids", "prompt = self.prompt_bytes"
    ),
    Mutation("a wrong entry stays", DISPATCHER, "if refused.digest and refused", "if False and refused"),
    Mutation("misrouted ends it", REPORTING, '"draining", "misrouted")', '"draining")'),
    Mutation(
        "rows are believed", JOINING, "now_ms > self._trusted_until_ms or (known and known.worker)", "False"
    ),
    Mutation(
        "refused and charged", QUEUE, "self._placer.undone(waiting.key)", "self._placer.ended(waiting.key)"
    ),
    Mutation("lost and charged", PLACER, f"({ENDED} else self.undone)", "self.ended"),
    Mutation("computed and not charged", PLACER, f"({ENDED} else self.undone)", "self.undone"),
    Mutation("routes go back", ROUTES, "return routes | newer", "return routes"),
]

BLOCK = "test_whatever_changes_and_breaks_every_token_is_of_the_weights_that_were_admitted[0]"
SUITE = Suite(
    name="fence",
    folders=[
        *("billing", "gpuworker", "modelsvc", "tenants"),
        *("platform/config", "platform/dispatch", "platform/gateway", "platform/policy"),
        "tests/dispatch",
    ],
    tests=[f"tests/dispatch/fence/test_fence.py::{BLOCK}"],
    mutations=MUTATIONS,
)

if __name__ == "__main__":
    sys.exit(suite_run(SUITE))
