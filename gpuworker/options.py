"""Command line of a worker process."""

import argparse
import math
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
    tensor_parallel: int
    kv_blocks: int
    host_kv_blocks: int
    has_prefix_cache: bool
    max_rows: int
    target_itl_ms: float | None
    step_ms: float
    drain_s: float
    role: str
    labels: tuple[str, ...]


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
    add(
        "--tensor-parallel",
        type=_positive_int,
        default=1,
        metavar="RANKS",
        help="processes that share the model",
    )
    add("--kv-blocks", type=_positive_int, default=1024, help="blocks of 16 tokens in the KV pool")
    add(
        "--host-kv-blocks",
        type=_count,
        default=0,
        help="blocks in host memory for preempted and paused requests; each takes as much as one of the pool",
    )
    add(
        "--prefix-cache",
        choices=("on", "off"),
        default="on",
        help="whether requests of a tenant share the KV of equal beginnings",
    )
    add("--max-rows", type=_positive_int, default=64, help="requests that run at the same time")
    add("--target-itl-ms", type=_target, default=40.0, help="inter-token latency to keep, or off")
    add("--step-ms", type=float, default=0.0, help="how long a step of the scripted backend takes")
    add("--drain-s", type=float, default=30.0, help="after SIGTERM: for running requests to finish")
    add(
        "--role",
        choices=("both", "prefill", "decode"),
        default="both",
        help="prefill: run no requests, compute long prompts for other workers; decode: for none",
    )
    add("--label", action="append", default=[], choices=("long_prompt",), help="may be repeated")
    values = vars(parser.parse_args(arguments))
    values["labels"] = tuple(values.pop("label"))
    values["has_prefix_cache"] = values.pop("prefix_cache") == "on"
    if values["role"] != "both" and not values["has_prefix_cache"]:
        parser.error("--role prefill and decode need the prefix cache: KV travels by the names of prefixes")
    return Options(**values)


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, not {value}")
    return value


def _positive_int(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be positive, not {value}")
    return value


def _target(text: str) -> float | None:
    if text == "off":
        return None
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be positive or off, not {text}")
    return value
