"""When requests come: Poisson arrivals at a rate that is constant, follows a curve, or jumps between states.

Every iterator gives times in simulated microseconds, in order, from `start_s` on and before `end_s`.
"""

from collections.abc import Callable, Iterator
from math import cos, exp, inf, pi
from random import Random
from typing import Annotated

from msgspec import Meta, Struct

PerSecond = Annotated[float, Meta(gt=0, le=100_000)]
Seconds = Annotated[float, Meta(gt=0, le=31 * 86_400)]
Moment = Annotated[float, Meta(ge=0, le=31 * 86_400)]  # seconds since the simulation began
Times = Annotated[float, Meta(gt=1, le=1000)]  # so much more than before


class _Curve(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    pass


class Daily(_Curve, frozen=True, kw_only=True, tag="daily"):
    """A sine between two rates. A shorter `period_s` is a day in fast motion."""

    least_per_s: PerSecond
    most_per_s: PerSecond
    period_s: Seconds = 86_400.0
    peak_s: Moment = 43_200.0

    def __post_init__(self) -> None:
        if self.least_per_s > self.most_per_s:
            raise ValueError(f"`least_per_s` ({self.least_per_s}) is above `most_per_s` ({self.most_per_s})")

    @property
    def peak_per_s(self) -> float:
        return self.most_per_s

    def per_s(self, at_s: float) -> float:
        height = (1 + cos(2 * pi * (at_s - self.peak_s) / self.period_s)) / 2
        return self.least_per_s + height * (self.most_per_s - self.least_per_s)


class Doubling(_Curve, frozen=True, kw_only=True, tag="doubling"):
    """`before_per_s` until `at_s`; then it grows by the same part every second, to `times` as much
    `within_s` later, and stays there."""

    before_per_s: PerSecond
    at_s: Moment
    within_s: Seconds
    times: Times = 2.0

    @property
    def peak_per_s(self) -> float:
        return self.before_per_s * self.times

    def per_s(self, at_s: float) -> float:
        done = min(1.0, max(0.0, (at_s - self.at_s) / self.within_s))
        return float(self.before_per_s * self.times**done)


class FlashCrowd(_Curve, frozen=True, kw_only=True, tag="flash_crowd"):
    """`before_per_s` until `at_s`; up to `times` as much in `rise_s`, held for `hold_s`, then it falls back:
    the excess to a third (1/e) every `fall_s`."""

    before_per_s: PerSecond
    at_s: Moment
    times: Times = 10.0
    rise_s: Seconds = 5.0
    hold_s: Seconds = 60.0
    fall_s: Seconds = 60.0

    @property
    def peak_per_s(self) -> float:
        return self.before_per_s * self.times

    def per_s(self, at_s: float) -> float:
        since = at_s - self.at_s
        if since <= 0:
            height = 0.0
        elif since < self.rise_s:
            height = since / self.rise_s
        else:
            height = exp(-max(0.0, since - self.rise_s - self.hold_s) / self.fall_s)
        return self.before_per_s * (1 + height * (self.times - 1))


class State(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A state of `Bursts`: its rate, which may be 0, and how long it lasts on average (exponential)."""

    per_s: Annotated[float, Meta(ge=0, le=100_000)]
    mean_s: Seconds


class Bursts(_Curve, frozen=True, kw_only=True, tag="bursts"):
    """Markov-modulated Poisson: begins in the first state; after each, any other one with the same chance."""

    states: Annotated[tuple[State, ...], Meta(min_length=2, max_length=100)]

    @property
    def mean_per_s(self) -> float:
        """Over a long time."""
        return sum(s.per_s * s.mean_s for s in self.states) / sum(s.mean_s for s in self.states)


Rate = PerSecond | Daily | Doubling | FlashCrowd | Bursts


def arrival_times(
    rate: float | Daily | Doubling | FlashCrowd | Bursts, rng: Random, start_s: float, end_s: float
) -> Iterator[int]:
    if isinstance(rate, Bursts):
        times = _modulated(rate.states, rng, start_s, end_s)
    elif isinstance(rate, Daily | Doubling | FlashCrowd):
        times = _thinned(rate.per_s, rate.peak_per_s, rng, start_s, end_s)
    else:
        times = _steady(rate, rng, start_s, end_s)
    return (round(at_s * 1e6) for at_s in times)


def _steady(per_s: float, rng: Random, at_s: float, end_s: float) -> Iterator[float]:
    while (at_s := at_s + rng.expovariate(per_s)) < end_s:
        yield at_s


def _thinned(
    per_s: Callable[[float], float], peak_per_s: float, rng: Random, start_s: float, end_s: float
) -> Iterator[float]:
    """Arrivals at the highest rate, each kept with the chance that its moment's rate has (Lewis and Shedler,
    Naval Research Logistics 26, 1979)."""
    for at_s in _steady(peak_per_s, rng, start_s, end_s):
        if rng.random() * peak_per_s < per_s(at_s):
            yield at_s


def _modulated(states: tuple[State, ...], rng: Random, at_s: float, end_s: float) -> Iterator[float]:
    index = 0
    while at_s < end_s:
        state = states[index]
        state_end_s = min(end_s, at_s + rng.expovariate(1 / state.mean_s))
        # An arrival that would come after the state's end is forgotten: exponential gaps have no memory.
        while (at_s := at_s + (rng.expovariate(state.per_s) if state.per_s else inf)) < state_end_s:
            yield at_s
        at_s = state_end_s
        index = (index + 1 + rng.randrange(len(states) - 1)) % len(states)
