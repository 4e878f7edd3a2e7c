"""`make mutate SUITE=engine`: is every rule of the engine held by a test that needs no torch?"""

import sys

from bench.mutate.engine_memory import KV_MUTATIONS, POOL_MUTATIONS
from bench.mutate.engine_steps import ENGINE_MUTATIONS, STEP_MUTATIONS
from bench.mutate.mutation import Suite, suite_run

TESTS = [
    "block_pool",
    "prefix_cache",
    "block_pool_properties",
    "cases",
    "cases_of_requests",
    "scheduling_rules",
    "scheduler",
    "choices",
    "preemption",
    "engine",
    "fair_steps",
    "fleet_shares",
    "machine_time",
    "pacing_in_engine",
    "scheduler_corners",
    "engine_corners",
    "engine_features",
    "scheduler_properties",  # the slowest, last
]

SUITE = Suite(
    name="engine",
    folders=["gpuworker", "modelsvc", "platform/config", "platform/policy", "tests/engine", "tests/policy"],
    tests=["tests/policy/test_prefix.py", *(f"tests/engine/test_{name}.py" for name in TESTS)],
    mutations=[*POOL_MUTATIONS, *KV_MUTATIONS, *STEP_MUTATIONS, *ENGINE_MUTATIONS],
)

if __name__ == "__main__":
    sys.exit(suite_run(SUITE))
