"""Workloads by the tables of a scenario file: streams of requests, bursts at one moment, recorded traces.

    [[workload]]
    kind = "stream"
    name = "chat"
    rate = 20.0                                   # a second: Poisson; or { kind = "daily", … }
    end_s = 80.0
    tenants = 10
    prompts = { mean = 1000, cv = 0.8, least = 16, most = 8192 }
    sharing = { kind = "system_prompts", share = 0.5 }

    [[workload]]
    kind = "burst"
    name = "noisy"
    noise = true
    at_s = 20.0
    requests = 10000
    prompts = 500
    answers = 2000

Arrivals are the same for the same seed, on every machine; those of one part do not depend on the other parts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from fleetsim.arrival import PREFIX_TOKENS, Arrival, Klass, in_time_order
from fleetsim.lengths import ANSWERS, PROMPTS, Length, Tokens, draw
from fleetsim.prefixes import Sharing, forest_of
from fleetsim.rates import Moment, Rate, Seconds, arrival_times
from fleetsim.traces import TraceFormat, trace_rows

Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$")]
Weight = Annotated[float, Meta(gt=0, le=1000)]
PARTS = 64
ID_SPACE = 1 << 52  # prefix ids of one part
TENANT_ID_SPACE = 1 << 35  # of these, of one tenant of a trace


class WorkloadError(ValueError):
    """A workload that cannot be: the message names the field. `code` is stable."""

    code = "invalid_workload"


class Tenant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`share`: its part of the workload's requests, against the other tenants' shares."""

    name: Name
    weight: Weight = 1.0
    share: Weight = 1.0
    keys: Annotated[int, Meta(ge=1, le=100_000)] = 1


TenantCount = Annotated[int, Meta(ge=1, le=100_000)]
TenantList = Annotated[tuple[Tenant, ...], Meta(min_length=1, max_length=100_000)]


class _Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What all kinds have. `tenants`: so many alike, named after the workload, or each by itself.
    `noise`: what a quiet run leaves out, and whose own first tokens are not counted."""

    name: Name
    tenants: TenantCount | TenantList = 1
    klass: Klass = "interactive"
    max_tokens: Tokens = 2048
    deadline_ms: Annotated[int, Meta(ge=1, le=31 * 86_400_000)] = 10_000
    noise: bool = False

    def each_tenant(self) -> tuple[Tenant, ...]:
        if not isinstance(self.tenants, int):
            return self.tenants
        if self.tenants == 1:
            return (Tenant(name=self.name),)
        digits = len(str(self.tenants - 1))
        return tuple(Tenant(name=f"{self.name}-{number:0{digits}}") for number in range(self.tenants))

    def _arrival(
        self,
        at_us: int,
        tenant: Tenant,
        key: int,
        prompt_tokens: int,
        output_tokens: int,
        prefix: tuple[int, ...],
    ) -> Arrival:
        return Arrival(
            at_us,
            tenant.name,
            f"{tenant.name}/{key}",
            self.klass,
            prompt_tokens,
            output_tokens,
            self.max_tokens,
            self.deadline_ms,
            prefix,
            tenant.weight,
        )


class Stream(_Part, frozen=True, kw_only=True, tag="stream"):
    """Requests one after another, each of a tenant by chance."""

    rate: Rate
    end_s: Seconds
    start_s: Moment = 0.0
    prompts: Length = PROMPTS
    answers: Length = ANSWERS
    sharing: Sharing | None = None

    def arrivals(self, rng: Random, first_id: int) -> Iterator[Arrival]:
        times, chooser, lengths = (Random(rng.getrandbits(64)) for _ in range(3))  # noqa: S311
        forest = forest_of(self.sharing, first_id)
        choose = _chooser(self.each_tenant(), chooser)
        for at_us in arrival_times(self.rate, times, self.start_s, self.end_s):
            tenant, key = choose()
            message_tokens, answer_tokens = draw(self.prompts, lengths), draw(self.answers, lengths)
            prompt = forest.prompt(chooser, tenant.name, at_us, message_tokens, answer_tokens)
            yield self._arrival(at_us, tenant, key, prompt.tokens, answer_tokens, prompt.prefix)


class Burst(_Part, frozen=True, kw_only=True, tag="burst"):
    """All at one moment, dealt to the tenants and their keys in turn: a noisy neighbour."""

    at_s: Moment
    requests: Annotated[int, Meta(ge=1, le=10_000_000)]
    prompts: Length = PROMPTS
    answers: Length = ANSWERS

    def arrivals(self, rng: Random, first_id: int) -> Iterator[Arrival]:
        at_us, tenants = round(self.at_s * 1e6), self.each_tenant()
        for number in range(self.requests):
            turn, index = divmod(number, len(tenants))
            tenant = tenants[index]
            prompt_tokens, output_tokens = draw(self.prompts, rng), draw(self.answers, rng)
            yield self._arrival(at_us, tenant, turn % tenant.keys, prompt_tokens, output_tokens, ())


class Trace(_Part, frozen=True, kw_only=True, tag="trace"):
    """Recorded requests, `speed` times as fast, each of a tenant by chance: a trace does not say of whom, and
    with several tenants fewer prefixes are shared. Begins at `start_s`, reads until the file or `end_s` ends.
    Longer prompts are cut to `prompt_most_tokens`."""

    path: str
    format: TraceFormat
    speed: Annotated[float, Meta(gt=0, le=10_000)] = 1.0
    start_s: Moment = 0.0
    end_s: Seconds = 31 * 86_400.0
    prompt_most_tokens: Tokens = 1_000_000

    def arrivals(self, rng: Random, first_id: int) -> Iterator[Arrival]:
        tenants = self.each_tenant()
        choose = _chooser(tenants, rng)
        first_ids = {tenant: first_id + n * TENANT_ID_SPACE for n, tenant in enumerate(tenants)}
        for row in trace_rows(Path(self.path), self.format):
            at_us = round(self.start_s * 1e6 + row.at_us / self.speed)
            if at_us >= self.end_s * 1e6:
                return
            tenant, key = choose()
            prompt_tokens = min(row.prompt_tokens, self.prompt_most_tokens)
            blocks = row.prefix[: prompt_tokens // PREFIX_TOKENS]
            prefix = tuple(first_ids[tenant] + block for block in blocks)
            yield self._arrival(at_us, tenant, key, prompt_tokens, row.output_tokens, prefix)


def _chooser(tenants: tuple[Tenant, ...], rng: Random) -> Callable[[], tuple[Tenant, int]]:
    """Draws a tenant by its share, and the number of one of its keys."""
    cumulative = tuple(accumulate(tenant.share for tenant in tenants))

    def choose() -> tuple[Tenant, int]:
        tenant = rng.choices(tenants, cum_weights=cumulative)[0] if len(tenants) > 1 else tenants[0]
        return tenant, rng.randrange(tenant.keys)

    return choose


@dataclass(frozen=True, slots=True)
class Workload:
    parts: tuple[Stream | Burst | Trace, ...]

    def arrivals(self, seed: int, *, noise: bool = True) -> Iterator[Arrival]:
        """In time order. Without `noise` the others are the same. Raises TraceError on reaching a line of a
        trace that is wrong."""
        return in_time_order(
            part.arrivals(Random(f"{seed}/{part.name}"), number * ID_SPACE)  # noqa: S311
            for number, part in enumerate(self.parts)
            if noise or not part.noise
        )

    def weights(self) -> dict[str, float]:
        """Of all tenants."""
        return {tenant.name: tenant.weight for part in self.parts for tenant in part.each_tenant()}

    def noisy(self) -> frozenset[str]:
        """The tenants that a quiet run leaves out."""
        return frozenset(tenant.name for part in self.parts if part.noise for tenant in part.each_tenant())


_Parts = Annotated[tuple[Stream | Burst | Trace, ...], Meta(min_length=1, max_length=PARTS)]


def workload_of(config: Mapping[str, object], folder: Path = Path()) -> Workload:
    """The `workload` tables of a scenario; a trace's path is relative to `folder`. Raises WorkloadError."""
    try:
        parts = msgspec.convert(config.get("workload", ()), _Parts)
    except msgspec.ValidationError as error:
        problem = str(error)
        where = problem.replace("`$", "`workload") if "`$" in problem else f"{problem} - at `workload`"
        raise WorkloadError(where) from error
    _check_names(parts)
    return Workload(tuple(_located(part, folder) for part in parts))


def _located(part: Stream | Burst | Trace, folder: Path) -> Stream | Burst | Trace:
    if not isinstance(part, Trace):
        return part
    return msgspec.structs.replace(part, path=str(folder / part.path))


def _check_names(parts: Sequence[Stream | Burst | Trace]) -> None:
    """A part's name seeds its randomness; a tenant has one weight, and is noise or not."""
    names: set[str] = set()
    seen: dict[str, tuple[float, bool]] = {}
    for number, part in enumerate(parts):
        if part.name in names:
            raise WorkloadError(f"two workloads have the name {part.name!r} - at `workload[{number}].name`")
        names.add(part.name)
        for tenant in part.each_tenant():
            given = (tenant.weight, part.noise)
            if seen.setdefault(tenant.name, given) != given:
                raise WorkloadError(
                    f"tenant {tenant.name!r} has another weight, or is noise only here"
                    f" - at `workload[{number}].tenants`"
                )
