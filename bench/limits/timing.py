"""Durations of single calls, as one row of the report. Nothing is averaged before the percentiles."""

from array import array
from collections.abc import Sequence
from time import perf_counter_ns, thread_time_ns
from typing import Any

from bench.report import percentile


class Durations:
    """Of one kind of call; `bound_us` holds for the 99th percentile of the time by the clock. A call that
    waits for nobody is also timed by its CPU time, which other processes on the machine do not lengthen."""

    def __init__(self, call: str, bound_us: float) -> None:
        self.call = call
        self.bound_us = bound_us
        self._took_ns = array("q")
        self._cpu_ns = array("q")

    def add(self, took_ns: int, cpu_ns: int | None = None) -> None:
        self._took_ns.append(took_ns)
        if cpu_ns is not None:
            self._cpu_ns.append(cpu_ns)

    def row(self, note: str = "") -> dict[str, Any]:
        took_us, cpu_us = _sorted_us(self._took_ns), _sorted_us(self._cpu_ns)
        p99_us = percentile(took_us, 0.99)
        return {
            "call": self.call,
            "calls": len(took_us),
            "p50 us": percentile(took_us, 0.5),
            "p99 us": p99_us,
            "most us": took_us[-1] if took_us else float("nan"),
            "CPU p99 us": round(percentile(cpu_us, 0.99), 1) if cpu_us else "",
            "bound p99 us": self.bound_us,
            "rule": "holds" if p99_us <= self.bound_us else "BROKEN",
            "note": note,
        }


class Stopwatch:
    """Since it was made: by the clock, and by what this thread used."""

    __slots__ = ("_begun_ns", "_cpu_begun_ns")

    def __init__(self) -> None:
        self._cpu_begun_ns = thread_time_ns()
        self._begun_ns = perf_counter_ns()

    def read(self) -> tuple[int, int]:
        took_ns = perf_counter_ns() - self._begun_ns
        return took_ns, thread_time_ns() - self._cpu_begun_ns


def _sorted_us(durations_ns: Sequence[int]) -> list[float]:
    return [ns / 1000 for ns in sorted(durations_ns)]
