"""One request of a simulation, from its arrival to its end, over all its tries."""

from dataclasses import dataclass

from fleetsim.arrival import Arrival
from fleetsim.rows import Row
from policy.flow import Flow

SERVED, REFUSED, EXPIRED, FAILED = "served", "refused", "expired", "failed"


@dataclass(slots=True, eq=False)
class Request:
    """`index` counts requests of its kind, noise or not: it names the same one with and without noise.

    Times are microseconds; 0 until they are known."""

    number: int
    index: int
    arrival: Arrival
    is_noise: bool
    flow: Flow
    output_tokens: int
    submitted_us: int
    deadline_us: int
    tries: int = 0
    outcome: str = ""  # "" while it is not decided
    level: int = 0  # of degradation, fixed when it was admitted
    model: str = ""  # the smaller model, or ""
    entered_us: int = -1  # when it was admitted
    placed_us: int = 0
    first_us: int = 0
    end_us: int = 0
    replica: str = ""
    row: Row | None = None

    @property
    def ttft_us(self) -> int:
        return self.first_us - self.submitted_us
