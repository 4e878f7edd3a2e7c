"""One request as a workload gives it to the simulator, and the order of several workloads in time.

Knows nothing of replicas, queues or policies.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from operator import attrgetter
from typing import Literal

from policy.prefix import BLOCK_TOKENS, ROUTER_STRIDE

Klass = Literal["interactive", "batch"]
PREFIX_TOKENS = BLOCK_TOKENS * ROUTER_STRIDE  # what one id of a prefix stands for: what the router keeps


@dataclass(frozen=True, slots=True)
class Arrival:
    at_us: int  # simulated time, from 0
    tenant: str
    key: str  # the API key: quotas and fairness are per tenant, however many keys it has
    klass: Klass
    prompt_tokens: int
    output_tokens: int  # what it would generate, were it not cut at `max_tokens`
    max_tokens: int
    deadline_ms: int  # after `at_us`
    # Ids of the prompt's first full blocks of PREFIX_TOKENS, as far as another prompt may begin with
    # them: two prompts share the blocks before the first id that differs. No id is ever of two tenants.
    prefix: tuple[int, ...] = ()
    weight: float = 1.0  # of the tenant


def in_time_order(workloads: Iterable[Iterable[Arrival]]) -> Iterator[Arrival]:
    """Workloads that are in time order as one. In one microsecond the earlier workload is first."""
    return merge(*workloads, key=attrgetter("at_us"))
