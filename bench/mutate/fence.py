"""`make mutate SUITE=fence`: does each layer of the version fence show when it is missing, within 200 histories?"""

import sys

from bench.mutate.mutation import Mutation, Suite, suite_run

ROWS = "gpuworker/row_table.py"
REPLICAS = "platform/gateway/upstream/replicas.py"
STREAM = "platform/gateway/upstream/stream.py"
FAILOVER = "platform/gateway/upstream/failover.py"
DISPATCHER = "platform/dispatch/dispatcher.py"
JOINING = "platform/dispatch/joining.py"
REPORTING = "platform/dispatch/reporting.py"
PLACER = "platform/policy/placer.py"
QUEUE = "platform/policy/model_queue.py"
ROUTES = "modelsvc/routes.py"

MUTATIONS = [
    Mutation("worker: digest", ROWS, "if submit.digest != digest:", "if False:"),
    Mutation("worker: incarnation", ROWS, 'if run.worker not in ("", self._hello.incarnation):', "if False:"),
    Mutation("gateway: digest of a frame", REPLICAS, " or up.digest != stream.submit.digest", ""),
    Mutation("gateway: digest of a welcome", REPLICAS, "if welcome.digest != up.digest:", "if False:"),
    Mutation("gateway: incarnation", REPLICAS, "if welcome.incarnation != up.incarnation:", "if False:"),
    Mutation("gateway: another replica goes on", REPLICAS, "if stream.is_heard or up", "if up"),
    Mutation("gateway: what ended goes on", REPLICAS, "if stream.is_settled:\n            return False", "pass"),
    Mutation("gateway: misplaced, and left there", REPLICAS, "                    self._misplaced(stream)", "                    pass"),
    Mutation("gateway: moved is lost", REPLICAS, 'if end.reason == "moved":', "if False:"),
    Mutation("a number is used twice", FAILOVER, "stream.move(self._sid_next(), now)", "stream.move(stream.sid, now)"),
    Mutation("emitted ids are forgotten", STREAM, "prompt = self.prompt_bytes + ids", "prompt = self.prompt_bytes"),
    Mutation("a wrong entry stays", DISPATCHER, "if refused.digest and refused", "if False and refused"),
    Mutation("misrouted ends it", REPORTING, '"draining", "misrouted")', '"draining")'),
    Mutation("lost rows are believed", JOINING, "if now_ms > self._trusted_until_ms or (known and known.worker):", "if False:"),
    Mutation("refused and charged", QUEUE, "self._placer.undone(waiting.key)", "self._placer.ended(waiting.key)"),
    Mutation("lost and charged", PLACER, "(self.ended if placed.is_prefilled else self.undone)", "self.ended"),
    Mutation("computed and not charged", PLACER, "(self.ended if placed.is_prefilled else self.undone)", "self.undone"),
    Mutation("routes go back", ROUTES, "return routes | newer", "return routes"),
]  # fmt: skip

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
