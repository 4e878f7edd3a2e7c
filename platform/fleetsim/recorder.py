"""What happens during a simulation, counted: nothing here changes what happens."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleetsim.histogram import Histogram
from fleetsim.request import Request
from fleetsim.rows import BATCH
from policy.flow import Flow


@dataclass(slots=True)
class Slice:
    """One step of the plots."""

    arrived: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0
    depth: int = 0
    ready: int = 0
    first_us: list[int] = field(default_factory=list)
    tenant_tokens: Counter[str] = field(default_factory=Counter)  # of output


class Recorder:
    """`begin_us` to `end_us` is what is measured; plots show everything."""

    def __init__(
        self, noisy: frozenset[str], begin_us: int, end_us: int, duration_us: int, slice_us: int
    ) -> None:
        self.begin_us, self.end_us, self.slice_us = begin_us, end_us, slice_us
        self.noisy = noisy
        self.requests: list[Request] = []
        self.gaps: defaultdict[str, Histogram] = defaultdict(Histogram)  # of others, noise, batch
        self.output_tokens: Counter[str] = Counter()  # within the measured time, by kind
        self.tenant_tokens: Counter[str] = Counter()  # the same, by tenant
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.computed_tokens = 0
        self.ready_us = 0  # replica time within the measured time
        self.live_us = 0  # sum of the time that requests were in the system
        self.slices: list[Slice] = [Slice() for _ in range(-(-duration_us // slice_us) + 1)]
        self.now_us = 0
        self.work_us: Counter[Flow] = Counter()  # machine time within the measured time
        self._seen_us: Counter[tuple[str, Flow]] = Counter()
        self._new_tokens: Counter[Flow] = Counter()
        self._kinds: dict[Flow, str] = {}

    def kind(self, flow: Flow) -> str:
        """Whose tokens these are."""
        kind = self._kinds.get(flow)
        if kind is None:
            kind = "batch" if flow.klass == BATCH else "noise" if flow.tenant in self.noisy else "others"
            self._kinds[flow] = kind
        return kind

    @property
    def is_measuring(self) -> bool:
        return self.begin_us <= self.now_us < self.end_us

    def slice(self) -> Slice:
        return self.slices[min(self.now_us // self.slice_us, len(self.slices) - 1)]

    def gap(self, flow: Flow, gap_us: int, rows: int) -> None:
        """So many rows of the flow got a token, so long after their last."""
        self._new_tokens[flow] += rows
        if self.begin_us <= self.now_us < self.end_us:
            self.gaps[self._kinds.get(flow) or self.kind(flow)].add(gap_us, rows)

    def first_token(self, request: Request) -> None:
        self._new_tokens[request.flow] += 1
        if not request.is_noise and request.flow.klass != BATCH:
            self.slice().first_us.append(request.ttft_us)

    def fold(self) -> None:
        """Counts the tokens since the last call to this moment: to be called several times a second."""
        slice_ = self.slice()
        for flow, tokens in self._new_tokens.items():
            slice_.tenant_tokens[flow.tenant] += tokens
            slice_.output_tokens += tokens
            if self.begin_us < self.now_us <= self.end_us:
                self.output_tokens[self.kind(flow)] += tokens
                self.tenant_tokens[flow.tenant] += tokens
        self._new_tokens.clear()

    def prompt(self, prompt_tokens: int, cached_tokens: int) -> None:
        """A prompt is computed."""
        if self.is_measuring:
            self.prompt_tokens += prompt_tokens
            self.cached_tokens += cached_tokens
            self.computed_tokens += prompt_tokens - cached_tokens
        self.slice().prompt_tokens += prompt_tokens - cached_tokens

    def work(self, fleet: str, total_us: Mapping[Flow, int]) -> None:
        """Machine time that each flow was given so far, by one fleet's replicas; to be said in order."""
        for flow, us in total_us.items():
            new_us = us - self._seen_us[fleet, flow]
            self._seen_us[fleet, flow] = us
            if self.begin_us < self.now_us <= self.end_us:
                self.work_us[flow] += new_us

    def state(self, depth: int, ready: int) -> None:
        """Of one fleet, at its tick."""
        slice_ = self.slice()
        slice_.depth, slice_.ready = max(slice_.depth, depth), max(slice_.ready, ready)

    def replica_time(self, replicas: int, from_us: int, to_us: int) -> None:
        """So many replicas were ready."""
        within = min(to_us, self.end_us) - max(from_us, self.begin_us)
        self.ready_us += max(within, 0) * replicas
