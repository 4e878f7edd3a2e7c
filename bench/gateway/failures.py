"""How soon the other side knows: the worker of a client that left, the client of a worker that was killed."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.gateway.client import ClientConnection, Counts, connections_open, time_mark
from bench.gateway.decoding import Decoding
from bench.gateway.fleet import Fleet
from bench.gateway.loop import BenchFailed, Loop
from bench.gateway.process import ServerProcess, request_bytes
from bench.gateway.scenarios import MAX_TOKENS, ROWS_PER_STEP
from bench.report import median

_RATE = 50.0  # tokens a second of a stream that is not silent
_TOKENS_SEEN = 3
_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Opened:
    """Streams that are being read, and the fleet that feeds them."""

    loop: Loop
    fleet: Fleet
    clients: list[ClientConnection]


@contextmanager
def _opened(
    loop: Loop, server: ServerProcess, fleet: Fleet, streams: int, *, silent: bool
) -> Iterator[Opened]:
    """After a few tokens: those of `silent` streams then stop."""
    counts = Counts()
    decoding = Decoding(loop, fleet, rate=_RATE, rows=streams, rows_per_step=ROWS_PER_STEP, text=time_mark)
    fleet.on_submit = lambda submit: decoding.add(submit.sid)
    clients = connections_open(loop, server.port, streams, counts)
    request = request_bytes(server.key, stream=True, max_tokens=MAX_TOKENS)
    for client in clients:
        client.request(request, is_stream=True)
    loop.run_until(
        lambda: all(client.events >= _TOKENS_SEEN for client in clients),
        within_s=_WAIT_S,
        what="first tokens",
    )
    if silent:
        decoding.is_running = False
        loop.run_for(0.05)
    try:
        yield Opened(loop, fleet, clients)
    finally:
        decoding.is_running = False


def abort_one_by_one_ms(
    loop: Loop, server: ServerProcess, fleet: Fleet, *, rounds: int, silent: bool
) -> list[float]:
    """From the client's close to the worker's Cancel, each."""
    return [
        _aborted_ms(loop, server, fleet, streams=1, silent=silent, picked=lambda times: times[-1])
        for _ in range(rounds)
    ]


def abort_at_once_ms(loop: Loop, server: ServerProcess, fleet: Fleet, *, streams: int, silent: bool) -> float:
    """From before the first close to the last Cancel."""
    return _aborted_ms(loop, server, fleet, streams=streams, silent=silent, picked=max)


def _aborted_ms(
    loop: Loop,
    server: ServerProcess,
    fleet: Fleet,
    *,
    streams: int,
    silent: bool,
    picked: Callable[[list[float]], float],
) -> float:
    cancelled_at: list[float] = []
    fleet.on_cancel = lambda _: cancelled_at.append(time.monotonic())
    with _opened(loop, server, fleet, streams, silent=silent) as opened:
        began_at = time.monotonic()
        for client in opened.clients:
            client.close()
        loop.run_until(lambda: len(cancelled_at) == streams, within_s=_WAIT_S, what="cancels at the worker")
    return (picked(cancelled_at) - began_at) * 1000


def killed_ms(loop: Loop, server: ServerProcess, fleet: Fleet, *, streams: int) -> tuple[float, float]:
    """Median and longest time from the worker's death to the explicit error event. Raises BenchFailed."""
    with _opened(loop, server, fleet, streams, silent=False) as opened:
        began_ns = time.monotonic_ns()
        fleet.worker_kill()
        loop.run_until(
            lambda: all(client.ended_ns for client in opened.clients),
            within_s=_WAIT_S,
            what="ends of streams",
        )
        without = sum(not client.error for client in opened.clients)
        if without:
            raise BenchFailed(f"{without} of {streams} streams ended without an error event")
        times_ms = [(client.ended_ns - began_ns) / 1e6 for client in opened.clients]
    return median(times_ms), max(times_ms)
