"""How a bench says what it found: a table for people, JSON under the state folder for machines."""

import json
import math
import os
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def percentile(values: Sequence[float], fraction: float) -> float:
    """Nearest-rank percentile; NaN for no values."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else float("nan")


def bench_folder() -> Path:
    folder = Path(os.environ.get("SLUICE_STATE", "var")).resolve() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def bench_report(suite: str, title: str, rows: Sequence[dict[str, Any]], **facts: Any) -> Path:
    """Print `rows` (equal keys) as a table and write them, with machine and `facts`, to `<suite>.json`."""
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*(f"{v:,.1f}" if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=160).print(table)
    path = bench_folder() / f"{suite}.json"
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    record = {"suite": suite, "at": int(time.time()), "machine": machine, **facts, "rows": list(rows)}
    path.write_text(json.dumps(record, indent=2) + "\n")
    Console().print(f"written to {path}")
    return path
