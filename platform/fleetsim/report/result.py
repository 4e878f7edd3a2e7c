"""What one simulation found: the fields of its JSON file, and how they are read and written.

The simulator fills it in; tables and pages only read it. Everything but `wall_s` is the same on every run of
the same scenario and seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Literal

import msgspec


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of `count` values; all are 0.0 when there were none."""

    count: int
    p50: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests and tokens; `arrived` is the sum of the other requests."""

    arrived: int
    served: int
    refused: int  # at admission, with a Retry-After
    expired: int  # deadline passed in the queue: never reached a replica
    failed: int  # lost with a replica, or not placeable
    unfinished: int  # still queued or running at the end
    prompt_tokens: int  # of requests that were prefilled
    cached_tokens: int  # of these, found in a prefix cache
    output_tokens: int

    @property
    def cached_share(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(frozen=True, slots=True)
class PromptBand:
    least_tokens: int
    most_tokens: int
    ttft_ms: Percentiles
    itl_ms: Percentiles


@dataclass(frozen=True, slots=True)
class TenantService:
    """`machine_share`: the tenant's part of all machine time that was used, 0 to 1."""

    tenant: str
    weight: float
    noisy: bool
    arrived: int
    served: int
    refused: int
    output_tokens: int
    machine_share: float
    ttft_ms: Percentiles


@dataclass(frozen=True, slots=True)
class Series:
    """One line over time; `values[i]` is of `[i · step_s, (i + 1) · step_s)`, None where there was nothing to
    measure."""

    name: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines that share their axes; a few hundred values each. `unit`: ms, share (0 to 1), USD, or what is
    counted. The page has words for ttft_ms, queue_depth, tokens_per_s, utilisation, usd_per_million,
    replicas, arrivals_per_s, tenant_tokens_per_s; it shows any other too."""

    id: str
    unit: str
    step_s: float
    lines: tuple[Series, ...]


@dataclass(frozen=True, slots=True)
class LevelChange:
    at_s: float
    before: int
    after: int
    reason: str


@dataclass(frozen=True, slots=True)
class Check:
    """A promise of the scenario. `value` and `limit` are in `unit`; `relation` says how they must stand."""

    name: str
    value: float
    relation: Literal["≤", "≥", "<", ">", "="]
    limit: float
    unit: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Variant:
    """The scenario with something changed, such as the scheduler or the fleet: shown beside the run."""

    name: str
    served: int
    arrived: int
    ttft_ms: Percentiles
    added_ttft_ms: Percentiles
    itl_ms: Percentiles
    output_tokens_per_s: float
    utilisation: float
    usd_per_million: float
    cached_share: float


@dataclass(frozen=True, slots=True)
class Result:
    scenario: str
    title: str
    seed: int
    replica_model: str  # spec, physical, measured
    replicas: int
    simulated_s: float
    wall_s: float
    ttft_ms: Percentiles  # of interactive requests that are no noise
    itl_ms: Percentiles  # of the same, every token after the first
    added_ttft_ms: Percentiles
    added_over: str  # what the first token is later than
    output_tokens_per_s: float
    utilisation: float  # additive machine time used, of what the replicas had; full replicas may pass 1
    usd_per_million: float  # of output tokens
    events_sha256: str
    counts: Counts
    bands: tuple[PromptBand, ...] = ()
    tenants: tuple[TenantService, ...] = ()
    plots: tuple[Plot, ...] = ()
    levels: tuple[LevelChange, ...] = ()
    checks: tuple[Check, ...] = ()
    variants: tuple[Variant, ...] = ()


def run_itself(result: Result) -> Variant:
    """A run as one of its variants, to compare them with."""
    return Variant(
        "this run",
        result.counts.served,
        result.counts.arrived,
        result.ttft_ms,
        result.added_ttft_ms,
        result.itl_ms,
        result.output_tokens_per_s,
        result.utilisation,
        result.usd_per_million,
        result.counts.cached_share,
    )


def percentiles(values: Sequence[float]) -> Percentiles:
    """Nearest rank: the smallest value that at least so many of all are not above."""
    if not values:
        return Percentiles(0, 0.0, 0.0, 0.0, 0.0)
    ordered = sorted(values)
    p50, p95, p99 = (ordered[ceil(part * len(ordered) / 100) - 1] for part in (50, 95, 99))
    return Percentiles(len(ordered), p50, p95, p99, ordered[-1])


def result_write(result: Result, path: Path) -> None:
    """As JSON, in an order of fields that never changes. Raises OSError."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result)) + b"\n")


def result_read(path: Path) -> Result:
    """Raises OSError; ValueError naming the field of a file that is no result."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Result)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} is no result of a simulation: {error}") from error
