"""Command line of a worker process."""

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuworker.upstream_terms import FLAVOURS, KINDS, MAX_PATIENCE_S


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
    gateways: tuple[str, ...]
    upstream_url: str
    upstream_model: str
    upstream_revision: str
    upstream_flavour: str
    upstream_connect_s: float
    upstream_first_token_s: float
    upstream_silence_s: float
    upstream_check_s: float


def options_parse(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m gpuworker", description="Serve one model to gateways.")
    add = parser.add_argument
    add("--id", required=True, help="stable name, for people: worker-0")
    add(
        "--dispatch",
        required=True,
        metavar="ADDRESS",
        help="dispatcher, or several: unix:/path, tcp://host:port",
    )
    add("--listen", required=True, metavar="ADDRESS", help="where gateways connect")
    add("--weights", required=True, type=Path, metavar="DIR", help="verified before a byte is served")
    add("--model", required=True, metavar="SLUG", help="the model's public name")
    add("--spool", required=True, type=Path, metavar="DIR", help="usage records wait here for the controller")
    add("--backend", choices=("native", "scripted", *KINDS), default="native")
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
    add("--drain-s", type=float, default=120.0, help="after SIGTERM: then others get what runs")
    add(
        "--role",
        choices=("both", "prefill", "decode"),
        default="both",
        help="prefill: run no requests, compute long prompts for other workers; decode: for none",
    )
    add("--label", action="append", default=[], choices=("long_prompt",), help="may be repeated")
    add(
        "--gateway",
        action="append",
        default=[],
        metavar="ID",
        help="one that may come for tokens, may be repeated; default: whoever knows the secret",
    )
    _upstream_add(parser.add_argument_group("of the openai and tgi backends"))
    values = vars(parser.parse_args(arguments))
    values["labels"], values["gateways"] = tuple(values.pop("label")), tuple(values.pop("gateway"))
    values["has_prefix_cache"] = values.pop("prefix_cache") == "on"
    if values["role"] != "both" and not values["has_prefix_cache"]:
        parser.error("--role prefill and decode need the prefix cache: KV travels by the names of prefixes")
    if values["backend"] in KINDS and not (values["upstream_url"] and values["upstream_model"]):
        parser.error("--backend openai and tgi need --upstream-url and --upstream-model")
    return Options(**values)


def _upstream_add(group: "argparse._ArgumentGroup") -> None:
    """The key is no argument: others can read those. It is in SLUICE_UPSTREAM_KEY."""
    add = group.add_argument
    add("--upstream-url", default="", metavar="URL", help="http://host:8000 or https://host")
    add("--upstream-model", default="", metavar="NAME", help="what the server calls the model")
    add("--upstream-revision", default="", metavar="SHA", help="where the server tells one, it must agree")
    add("--upstream-flavour", choices=FLAVOURS, default="generic", help="which server it is")
    add("--upstream-connect-s", type=_seconds, default=3.0)
    add("--upstream-first-token-s", type=_seconds, default=30.0, help="patience before the first token")
    add("--upstream-silence-s", type=_seconds, default=20.0, help="and between tokens")
    add("--upstream-check-s", type=_seconds, default=10.0, help="between looks at what model is served")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= MAX_PATIENCE_S:
        raise argparse.ArgumentTypeError(f"must lie between 0 and {MAX_PATIENCE_S:g}, not {text}")
    return value


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
