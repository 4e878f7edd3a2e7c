"""A round: a fresh gateway and a fresh bare server after it, on the same core, each measure taken once."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.gateway.failures import abort_at_once_ms, abort_one_by_one_ms, killed_ms
from bench.gateway.fleet import WIRE_SECRET, Fleet
from bench.gateway.loop import BenchFailed, Loop
from bench.gateway.process import ServerProcess
from bench.gateway.scenarios import Answers, Paced, Target, answers, paced
from tests.gateway.harness import MODEL
from tests.gateway.weights import store_make

_READY_S = 30.0
_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class Load:
    """A paced measurement: streams, and tokens a second of each."""

    name: str
    streams: int
    rate: float
    is_bare_too: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What a round does; the first load is the one that memory is read from."""

    loads: tuple[Load, ...]
    seconds: float
    aborts: int  # one by one
    together: int  # streams left at once, and streams of the worker that is killed


@dataclass(frozen=True, slots=True)
class Round:
    """`paced` and `bare_paced` by the name of the load; times in milliseconds."""

    paced: dict[str, Paced]
    bare_paced: dict[str, Paced]
    answers: Answers
    bare_answers: Answers
    abort_ms: list[float]
    abort_silent_ms: list[float]
    abort_together_ms: float
    abort_together_silent_ms: float
    killed_ms: float
    killed_last_ms: float


@contextmanager
def server_started(kind: str, core: int, *, profile: str = "") -> Iterator[Target]:
    """`kind`: gateway or bare; ready to be measured."""
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir="/tmp") as name:
        folder, loop = Path(name), Loop()
        digest = store_make(folder / "weights")
        fleet = Fleet(loop, folder, digest, MODEL)
        server = ServerProcess(
            kind,
            folder,
            core,
            digest=digest,
            dispatch=fleet.dispatch_address,
            wire_secret=WIRE_SECRET,
            profile=profile,
        )
        try:
            ready = (
                (lambda: server.is_ready) if kind == "bare" else (lambda: server.is_ready and fleet.is_joined)
            )
            loop.run_until(ready, within_s=_READY_S, what=f"the {kind} server's start")
            yield Target(loop, server, fleet if kind == "gateway" else None)
        except BenchFailed as failure:
            raise BenchFailed(f"{failure}{server.last_words()}") from None
        finally:
            server.stop()


def round_run(plan: Plan, core: int) -> Round:
    """Raises BenchFailed."""
    with server_started("bare", core) as bare:
        answers(bare, connections=_CONNECTIONS, seconds=0.5)  # warm: imports, buffers, memory
        bare_paced = {
            load.name: paced(bare, streams=load.streams, rate=load.rate, seconds=plan.seconds)
            for load in plan.loads
            if load.is_bare_too
        }
        bare_answers = answers(bare, connections=_CONNECTIONS, seconds=plan.seconds)
    with server_started("gateway", core) as target:
        loop, server, fleet = target.loop, target.server, target.fleet
        assert fleet is not None
        answers(target, connections=_CONNECTIONS, seconds=0.5)
        ours = {
            load.name: paced(target, streams=load.streams, rate=load.rate, seconds=plan.seconds)
            for load in plan.loads
        }
        our_answers = answers(target, connections=_CONNECTIONS, seconds=plan.seconds)
        one_by_one = [
            abort_one_by_one_ms(loop, server, fleet, rounds=plan.aborts, silent=silent)
            for silent in (False, True)
        ]
        together = [
            abort_at_once_ms(loop, server, fleet, streams=plan.together, silent=silent)
            for silent in (False, True)
        ]
        killed, killed_last = killed_ms(loop, server, fleet, streams=plan.together)
    return Round(
        paced=ours,
        bare_paced=bare_paced,
        answers=our_answers,
        bare_answers=bare_answers,
        abort_ms=one_by_one[0],
        abort_silent_ms=one_by_one[1],
        abort_together_ms=together[0],
        abort_together_silent_ms=together[1],
        killed_ms=killed,
        killed_last_ms=killed_last,
    )
