"""Command line of a worker process."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Options:
    id: str
    dispatch: str
    listen: str
    weights: Path
    model: str
    spool: Path
    backend: str
    dtype: str
    device: str
    threads: int
    kv_blocks: int
    max_rows: int
    target_itl_ms: float | None
    step_ms: float
    drain_s: float


def options_parse(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m gpuworker", description="Serve one model to gateways.")
    add = parser.add_argument
    add("--id", required=True, help="stable name, for people: worker-0")
    add("--dispatch", required=True, metavar="ADDRESS", help="the dispatcher: unix:/path or tcp://host:port")
    add("--listen", required=True, metavar="ADDRESS", help="where gateways connect")
    add("--weights", required=True, type=Path, metavar="DIR", help="verified before a byte is served")
    add("--model", required=True, metavar="SLUG", help="the model's public name")
    add("--spool", required=True, type=Path, metavar="DIR", help="usage records wait here for the controller")
    add("--backend", choices=("native", "scripted"), default="native")
    add("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    add("--device", choices=("cpu",), default="cpu")
    add("--threads", type=_positive_int, default=os.cpu_count() or 1, help="of a forward pass")
    add("--kv-blocks", type=_positive_int, default=1024, help="blocks of 16 tokens in the KV pool")
    add("--max-rows", type=_positive_int, default=64, help="requests that run at the same time")
    add("--target-itl-ms", type=_target, default=100.0, help="inter-token latency to keep, or off")
    add("--step-ms", type=float, default=0.0, help="how long a step of the scripted backend takes")
    add("--drain-s", type=float, default=30.0, help="after SIGTERM: for running requests to finish")
    return Options(**vars(parser.parse_args(arguments)))


def _positive_int(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be positive, not {value}")
    return value


def _target(text: str) -> float | None:
    if text == "off":
        return None
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be positive or off, not {text}")
    return value
