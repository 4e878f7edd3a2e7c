"""Load that holds: streams at a fixed pace, and whole answers as fast as they come. One setting each."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.gateway.client import ClientConnection, Counts, connections_open, time_mark
from bench.gateway.decoding import Decoding
from bench.gateway.fleet import Fleet
from bench.gateway.frames import end_of, frame_of
from bench.gateway.loop import BenchFailed, Loop
from bench.gateway.process import ServerProcess, request_bytes
from bench.report import percentile
from gpuworker.wire.messages import Submit

ROWS_PER_STEP = 64
MAX_TOKENS = 300
_MAX_RAMP_S = 4.0
_RAMP_PER_S = 500  # new streams, as long as that does not take too long
_SETTLE_S = 0.5
_ANSWER_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Target:
    """What is measured; the bare server has no fleet and paces its streams itself."""

    loop: Loop
    server: ServerProcess
    fleet: Fleet | None


@dataclass(frozen=True, slots=True)
class Paced:
    """Over the window in which all streams are open, except for first tokens and memory."""

    offered_per_s: float
    delivered: float  # events that arrived in the window, of those offered
    events_per_read: float
    cpu_us_per_event: float
    core_share: float
    load_core_share: float
    waited_share: float  # of the time, for a core that others used
    transit_p50_ms: float
    transit_p99_ms: float
    first_token_p50_ms: float
    first_token_p99_ms: float
    resident_kib_per_stream: float


def paced(target: Target, *, streams: int, rate: float, seconds: float) -> Paced:
    """`streams` at `rate` tokens a second each, begun one after the other. Raises BenchFailed."""
    loop, server = target.loop, target.server
    counts = Counts()
    resident_before = server.resident_bytes()
    clients = connections_open(loop, server.port, streams, counts)
    ramp_s = min(streams / _RAMP_PER_S, _MAX_RAMP_S)
    decoding: Decoding | None = None
    if target.fleet is not None:
        decoding = Decoding(
            loop, target.fleet, rate=rate, rows=streams, rows_per_step=ROWS_PER_STEP, text=time_mark
        )
        add = decoding.add
        target.fleet.on_submit = lambda submit: add(submit.sid)
        request = request_bytes(server.key, stream=True, max_tokens=MAX_TOKENS)
    else:
        tokens = int(rate * (ramp_s + _SETTLE_S + seconds + 0.5))
        pace = (f"x-rate: {rate}", f"x-tokens: {tokens}")
        request = request_bytes(server.key, stream=True, max_tokens=MAX_TOKENS, headers=pace)
    _requests_begin(loop, clients, request, ramp_s)
    loop.run_until(
        lambda: len(counts.first_tokens_us) == streams, within_s=ramp_s + 60, what=f"{streams} first tokens"
    )
    loop.run_for(_SETTLE_S)
    began_at, cpu_s, own_s = time.monotonic(), server.cpu_s(), time.process_time()
    waited_s = server.waited_s()
    events, reads, transits = counts.events, counts.reads, len(counts.transits_us)
    loop.run_for(seconds)
    elapsed_s = time.monotonic() - began_at
    cpu_s, own_s = server.cpu_s() - cpu_s, time.process_time() - own_s
    waited_s = server.waited_s() - waited_s
    events, reads = counts.events - events, counts.reads - reads
    window_us = counts.transits_us[transits:]
    resident_bytes = server.resident_bytes() - resident_before
    if decoding is not None:
        decoding.end()
    loop.run_until(lambda: counts.ended == streams, within_s=120, what="the ends of all streams")
    if decoding is not None and counts.events != decoding.rows_sent:
        raise BenchFailed(f"{counts.events} of {decoding.rows_sent} events arrived")
    for client in clients:
        client.close(reset=True)
    return Paced(
        offered_per_s=streams * rate,
        delivered=events / (streams * rate * elapsed_s),
        events_per_read=events / reads,
        cpu_us_per_event=cpu_s / events * 1e6,
        core_share=cpu_s / elapsed_s,
        load_core_share=own_s / elapsed_s,
        waited_share=waited_s / elapsed_s,
        transit_p50_ms=percentile(window_us, 0.5) / 1000,
        transit_p99_ms=percentile(window_us, 0.99) / 1000,
        first_token_p50_ms=percentile(counts.first_tokens_us, 0.5) / 1000,
        first_token_p99_ms=percentile(counts.first_tokens_us, 0.99) / 1000,
        resident_kib_per_stream=resident_bytes / streams / 1024,
    )


def _requests_begin(loop: Loop, clients: list[ClientConnection], request: bytes, ramp_s: float) -> None:
    began_at = time.monotonic()

    def begin(index: int) -> None:
        clients[index].request(request, is_stream=True)
        if index + 1 < len(clients):
            loop.call_at(began_at + ramp_s * (index + 1) / len(clients), lambda: begin(index + 1))

    begin(0)


@dataclass(frozen=True, slots=True)
class Answers:
    per_s: float
    cpu_us: float
    core_share: float
    p50_ms: float
    p99_ms: float


def answers(target: Target, *, connections: int, seconds: float) -> Answers:
    """Whole answers in a closed loop: each connection asks again when it was answered."""
    loop, server, fleet = target.loop, target.server, target.fleet
    counts = Counts()
    request = request_bytes(server.key, stream=False, max_tokens=_ANSWER_TOKENS)
    if fleet is not None:
        fleet.on_submit = _answer_at_once(fleet)
    clients = connections_open(loop, server.port, connections, counts)
    is_over = False

    def again(client: ClientConnection) -> Callable[[], None]:
        return lambda: None if is_over else client.request(request, is_stream=False)

    for client in clients:
        client.on_end = again(client)
        client.request(request, is_stream=False)
    loop.run_for(0.3)
    began_at, cpu_s, ended = time.monotonic(), server.cpu_s(), counts.ended
    loop.run_for(seconds)
    elapsed_s, cpu_s, ended = time.monotonic() - began_at, server.cpu_s() - cpu_s, counts.ended - ended
    is_over = True
    loop.run_until(lambda: all(client.ended_ns for client in clients), within_s=10, what="the last answers")
    for client in clients:
        client.close(reset=True)
    return Answers(
        per_s=ended / elapsed_s,
        cpu_us=cpu_s / ended * 1e6,
        core_share=cpu_s / elapsed_s,
        p50_ms=percentile(counts.answers_us, 0.5) / 1000,
        p99_ms=percentile(counts.answers_us, 0.99) / 1000,
    )


def _answer_at_once(fleet: Fleet) -> Callable[[Submit], None]:
    text = "x" * 4 * _ANSWER_TOKENS

    def answer(submit: Submit) -> None:
        ends = [end_of(submit.sid, "length", output_tokens=_ANSWER_TOKENS)]
        fleet.emit(frame_of([(submit.sid, 0, _ANSWER_TOKENS, text)], ends))

    return answer
