"""The whole path under load: starts its own stack; first-token time and tokens/s at 1, 8, 32 streams."""

import argparse
import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.report import bench_folder, bench_report, median, percentile
from bench.sse_client import Timeline, completion_stream

_ROOT = Path(__file__).resolve().parent.parent
_READY_TIMEOUT_S = 600


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Stack:
    """`manage.py up` with a state folder of its own; weights are taken from `SLUICE_WEIGHTS` when set."""

    def __init__(self, state: Path) -> None:
        self.state = state
        started = time.perf_counter()
        environment = {**os.environ, "SLUICE_STATE": str(state), "SLUICE_PORT": str(_free_port())}
        self._process = subprocess.Popen(
            [sys.executable, str(_ROOT / "manage.py"), "up"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines: list[str] = []
        assert self._process.stdout is not None
        for line in self._process.stdout:
            lines.append(line)
            if line.startswith("ready "):
                break
        else:
            raise SystemExit("the stack did not start:\n" + "".join(lines[-20:]))
        self.ready_s = time.perf_counter() - started

    @property
    def demo(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads((self.state / "demo.json").read_text())
        return result

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=60)


_numbers = itertools.count()


def _prompt(tokens: int) -> list[int]:
    """Token ids, so that every prompt has exactly this length; never the same again, so that no cached prefix
    helps."""
    number = next(_numbers)
    return [1000 + (number * 7919 + i * 104729) % 40000 for i in range(tokens)]


async def _load(demo: dict[str, Any], streams: int, prompt_tokens: int, output_tokens: int) -> list[Timeline]:
    body = {"model": demo["model"], "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
    return list(
        await asyncio.gather(
            *(
                completion_stream(
                    demo["base_url"], demo["api_key"], {**body, "prompt": _prompt(prompt_tokens)}
                )
                for _ in range(streams)
            )
        )
    )


def _row(streams: int, rounds: list[list[Timeline]], walls: list[float]) -> dict[str, Any]:
    timelines = [t for r in rounds for t in r]
    first = [t.first_token_ms for t in timelines]
    gaps = [g for t in timelines for g in t.gaps_ms]
    tokens = [sum(t.usage["completion_tokens"] for t in r) / w for r, w in zip(rounds, walls, strict=True)]
    return {
        "streams": streams,
        "output tok/s": median(tokens),
        "first token p50 ms": median(first),
        "first token p95 ms": percentile(first, 0.95),
        "gap p50 ms": median(gaps),
        "gap p95 ms": percentile(gaps, 0.95),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    arguments = parser.parse_args()
    state = bench_folder() / "stack-state"
    os.environ.setdefault("SLUICE_WEIGHTS", str(bench_folder().parent / "weights"))
    first = Stack(state)
    first.stop()
    stack = Stack(state)
    try:
        demo = stack.demo
        asyncio.run(_load(demo, 1, arguments.prompt_tokens, 8))
        rows = []
        for streams in arguments.streams:
            rounds, walls = [], []
            for _ in range(arguments.rounds):
                began = time.perf_counter()
                rounds.append(
                    asyncio.run(_load(demo, streams, arguments.prompt_tokens, arguments.output_tokens))
                )
                walls.append(time.perf_counter() - began)
            rows.append(_row(streams, rounds, walls))
    finally:
        stack.stop()
    bench_report(
        "stack",
        f"client → gateway → dispatcher → engine, {arguments.prompt_tokens}+{arguments.output_tokens} tokens",
        rows,
        first_up_ready_s=round(first.ready_s, 1),
        second_up_ready_s=round(stack.ready_s, 1),
        rounds=arguments.rounds,
    )
    print(f"first `up` ready after {first.ready_s:.1f} s, second after {stack.ready_s:.1f} s")


if __name__ == "__main__":
    main()
