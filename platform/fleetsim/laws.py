"""What holds in every simulation, whatever the policies do: checked after each run.

A violation is a defect of the simulator, never a finding about the policies.
"""

from math import sqrt

from fleetsim.fleet import TICK_US
from fleetsim.recorder import Recorder
from fleetsim.request import SERVED, Request
from fleetsim.simulation import Simulation

LITTLE_TOLERANCE = 0.02


class LawBroken(AssertionError):
    """The simulator lost, made up or counted twice."""


def laws_check(simulation: Simulation) -> None:
    """Raises LawBroken."""
    _check_tokens(simulation)
    _check_little(simulation.recorder)


def _check_tokens(simulation: Simulation) -> None:
    """Every token that a replica generated is one of a request, and the other way round."""
    alive: dict[int, int] = {}
    for member in simulation.members:
        if member.is_up:
            alive |= member.replica.emitted_alive
    generated = sum(member.replica.output_tokens for member in simulation.members)
    received = sum(_received(request, alive) for request in simulation.recorder.requests)
    if generated != received:
        raise LawBroken(f"replicas generated {generated} tokens, requests hold {received}")


def _received(request: Request, alive: dict[int, int]) -> int:
    if request.number in alive:
        return alive[request.number]
    if request.outcome == SERVED:
        return request.output_tokens
    return request.row.emitted if request.row else 0


def _check_little(recorder: Recorder) -> None:
    """Requests in the system, as sampled, are their rate of arrival times the time each stays."""
    stays_us = [
        (request.end_us or recorder.now_us) - request.entered_us
        for request in recorder.requests
        if request.entered_us >= 0
    ]
    stayed_us = sum(stays_us)
    # Each stay is seen to within a tick, one as often too long as too short.
    tolerance_us = LITTLE_TOLERANCE * stayed_us + TICK_US * sqrt(len(stays_us))
    if abs(recorder.live_us - stayed_us) > tolerance_us:
        raise LawBroken(f"{recorder.live_us} µs in the system as sampled, {stayed_us} as they stayed")
