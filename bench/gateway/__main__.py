"""`python -m bench.gateway [--quick]`: the gateway's numbers, beside the bare server's on the same core.

The gateway process has one core; a scripted dispatcher, a scripted worker and the clients share another.
What each event costs in CPU time at an equal offered rate, one event a read, is the figure to compare.
"""

import argparse
import os
import pstats
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.gateway.loop import BenchFailed
from bench.gateway.process import cores_split, descriptors_allow
from bench.gateway.rounds import Load, Plan, Round, round_run, server_started
from bench.gateway.scenarios import ROWS_PER_STEP, answers, paced
from bench.report import bench_report, median

AT_10K = Load("10k/s", 1_000, 10.0, is_bare_too=True)
AT_20K = Load("20k/s", 2_000, 10.0, is_bare_too=True)
AT_27K = Load("3,400 x 8/s", 3_400, 8.0)
AT_40K = Load("40k/s", 5_000, 8.0, is_bare_too=True)
AT_60K = Load("60k/s", 6_000, 10.0)
FULL = Plan(loads=(AT_10K, AT_20K, AT_27K, AT_40K, AT_60K), seconds=5.0, aborts=20, together=100)
QUICK = Plan(loads=(AT_10K, replace(AT_40K, is_bare_too=False)), seconds=1.5, aborts=5, together=100)
_PROFILE_LINES = 45

Value = Callable[[Round], float]


def _rows(rounds: list[Round], plan: Plan) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def row(measure: str, unit: str, ours: Value, bare: Value | None = None) -> None:
        values = [ours(one) for one in rounds]
        rows.append(
            {
                "measure": measure,
                "gateway": round(median(values), 3),
                "bare server": "" if bare is None else round(median([bare(one) for one in rounds]), 3),
                "unit": unit,
                "least": round(min(values), 3),
                "most": round(max(values), 3),
            }
        )

    for load in plan.loads:
        name, is_bare_too = load.name, load.is_bare_too

        def both(measure: str, unit: str, value: str, name: str = name, is_too: bool = is_bare_too) -> None:
            scale = 100 if unit == "%" else 1

            def ours(one: Round) -> float:
                return scale * float(getattr(one.paced[name], value))

            def bare(one: Round) -> float:
                return scale * float(getattr(one.bare_paced[name], value))

            row(f"{name}: {measure}", unit, ours, bare if is_too else None)

        both("CPU per event", "µs", "cpu_us_per_event")
        both("delivered of offered", "%", "delivered")
        both("core share", "%", "core_share")
        both("events a read", "", "events_per_read")
        both("worker → client p50", "ms", "transit_p50_ms")
        both("worker → client p99", "ms", "transit_p99_ms")
        both("first token p50", "ms", "first_token_p50_ms")
        both("first token p99", "ms", "first_token_p99_ms")
        both("memory a stream", "KiB", "resident_kib_per_stream")
    row("whole answers", "/s", lambda r: r.answers.per_s, lambda r: r.bare_answers.per_s)
    row("whole answers: CPU each", "µs", lambda r: r.answers.cpu_us, lambda r: r.bare_answers.cpu_us)
    row("whole answers: p99", "ms", lambda r: r.answers.p99_ms, lambda r: r.bare_answers.p99_ms)
    row("client leaves → worker told, p50", "ms", lambda r: median(r.abort_ms))
    row("client leaves → worker told, most", "ms", lambda r: max(r.abort_ms))
    row("the same, silent stream, p50", "ms", lambda r: median(r.abort_silent_ms))
    row("the same, silent stream, most", "ms", lambda r: max(r.abort_silent_ms))
    row(f"{plan.together} leave at once → last told", "ms", lambda r: r.abort_together_ms)
    row("the same, silent streams", "ms", lambda r: r.abort_together_silent_ms)
    row("worker killed → error event, p50", "ms", lambda r: r.killed_ms)
    row(f"worker killed → error event, last of {plan.together}", "ms", lambda r: r.killed_last_ms)
    return rows


def _profile(core: int) -> None:
    """Where the CPU time goes, by function: one gateway under paced streams, another under whole answers."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("streams", "answers"):
            path = Path(folder) / name
            with server_started("gateway", core, profile=str(path)) as target:
                if name == "streams":
                    found = paced(target, streams=500, rate=10.0, seconds=8.0)
                    print(f"\n{name}: {found.cpu_us_per_event:.1f} µs an event under the profiler")
                else:
                    seen = answers(target, connections=16, seconds=8.0)
                    print(f"\n{name}: {seen.cpu_us:.0f} µs an answer under the profiler, {seen.per_s:.0f}/s")
            pstats.Stats(str(path), stream=sys.stdout).sort_stats("tottime").print_stats(_PROFILE_LINES)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, half a minute")
    parser.add_argument("--rounds", type=int, default=3, help="medians are taken over these")
    parser.add_argument("--profile", action="store_true", help="print where the CPU time goes instead")
    arguments = parser.parse_args()
    plan, rounds_wanted = (QUICK, 1) if arguments.quick else (FULL, max(arguments.rounds, 1))
    try:
        core, others = cores_split()
        os.sched_setaffinity(0, others)
        wanted = max(load.streams for load in plan.loads)
        if (allowed := descriptors_allow(wanted)) < wanted:
            raise BenchFailed(f"{wanted} connections are needed and {allowed} allowed: raise `ulimit -Hn`")
        if arguments.profile:
            _profile(core)
            return 0
        rounds = [round_run(plan, core) for _ in range(rounds_wanted)]
    except BenchFailed as failure:
        sys.stderr.write(f"bench gateway: {failure}\n")
        return 1
    rows = _rows(rounds, plan)
    measured = [one for each in rounds for one in each.paced.values()]
    load_share = max(one.load_core_share for one in measured)
    waited_share = max(one.waited_share for one in measured)
    bench_report(
        "gateway",
        "Gateway on one core",
        rows,
        rounds=len(rounds),
        rows_per_step=ROWS_PER_STEP,
        seconds=plan.seconds,
        load_core_share_worst=round(load_share, 2),
        waited_share_worst=round(waited_share, 2),
    )
    print(
        f"peers used at most {load_share:.0%} of their core; the gateway waited up to {waited_share:.0%} of"
    )
    print("the time for its core because other processes used it: with more than a little, run it again")
    return 0


if __name__ == "__main__":
    sys.exit(main())
