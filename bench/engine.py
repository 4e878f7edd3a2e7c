"""Engine alone, in this process: time to first token, inter-token latency and tokens/s by number of streams.

`python -m bench.engine [--streams 1 8 32] [--pacing off|MS] [--dtype auto|float32|bfloat16] [--weights DIR]`
All streams of a row arrive together. The first token of the last stream waits for all other prompts.
"""

import argparse
import random
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.report import bench_report, median, percentile
from config.environment import weights_dir
from gpuworker.engine.block_pool import blocks_for
from gpuworker.engine.engine import CacheOptions, Engine
from gpuworker.engine.model_runner import ModelRunner
from gpuworker.engine.plan import Runner
from gpuworker.wire.messages import RowKey, Sampling, Submit, pack_ids
from modelsvc.importer import model_import_demo
from policy.pacing import StepPacer

GATEWAY = "bench"


def now_ms() -> float:
    return time.perf_counter() * 1000


def submit_make(
    sid: int, vocab_size: int, prompt_tokens: int, output_tokens: int, temperature: float
) -> Submit:
    randomness = random.Random(sid)
    prompt = [randomness.randrange(100, min(vocab_size, 20_000)) for _ in range(prompt_tokens)]
    return Submit(
        sid=sid,
        request_id=f"bench-{sid}",
        attempt=1,
        tenant="bench",
        model="bench",
        digest="bench",
        klass="interactive",
        prompt=pack_ids(prompt),
        max_tokens=output_tokens,
        sampling=Sampling(temperature=temperature, seed=sid),
        ignore_eos=True,
    )


def engine_make(
    runner: Runner, folder: Path, pacer: StepPacer | None, *, blocks: int, rows: int, context_tokens: int
) -> Engine:
    """Prompts that come again are computed again."""
    return Engine(
        runner,
        folder / "tokenizer.json",
        blocks=blocks,
        max_rows=rows,
        max_context_tokens=context_tokens,
        pacer=pacer,
        eos_ids=frozenset(),
        cache=CacheOptions(secret=b"bench", is_shared=False),
    )


def measure(engine: Engine, submits: list[Submit]) -> dict[str, Any]:
    begun = now_ms()
    for submit in submits:
        engine.submit(RowKey(GATEWAY, submit.sid), submit, begun)
    seen: dict[int, list[float]] = {submit.sid: [] for submit in submits}
    decode_ms, batch = [], 0
    while engine.has_work():
        output = engine.step(now_ms)
        at = now_ms()
        for columns in output.gateways.values():
            for sid, count in zip(columns.sids, columns.counts, strict=True):
                seen[sid] += [at] * count
        stats = engine.stats()
        batch = max(batch, stats.batch_rows)
        if stats.batch_rows == len(submits) and not output.prefilled:
            decode_ms.append(stats.step_ms)
    took_s = (now_ms() - begun) / 1000
    first = [times[0] - begun for times in seen.values()]
    gaps = [later - earlier for times in seen.values() for earlier, later in pairwise(times)]
    return {
        "streams": len(submits),
        "ttft p50 ms": median(first),
        "ttft p95 ms": percentile(first, 0.95),
        "itl p50 ms": median(gaps),
        "itl p99 ms": percentile(gaps, 0.99),
        "full step p50 ms": median(decode_ms),
        "tokens/s": sum(map(len, seen.values())) / took_s,
        "batch": batch,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--pacing", default="100", help="target inter-token latency in ms, or off")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--weights", type=Path, help="model folder; the demo model when absent")
    options = parser.parse_args()
    folder = options.weights or weights_dir() / model_import_demo(weights_dir()).digest
    context = options.prompt_tokens + options.output_tokens
    rows = max(options.streams)
    blocks = (rows + 1) * (blocks_for(context) + 1)
    runner = ModelRunner.load(
        folder,
        blocks=blocks,
        max_rows=rows,
        max_context_tokens=context,
        dtype=options.dtype,
        threads=options.threads,
    )
    results = []
    for streams in [1, *options.streams]:  # the first warms up and is dropped
        pacer = None if options.pacing == "off" else StepPacer(float(options.pacing))
        engine = engine_make(runner, folder, pacer, blocks=blocks, rows=rows, context_tokens=context)
        submits = [
            submit_make(
                sid, runner.vocab_size, options.prompt_tokens, options.output_tokens, options.temperature
            )
            for sid in range(streams)
        ]
        results.append(measure(engine, submits))
        engine.close()
    title = (
        f"engine, {options.prompt_tokens} prompt + {options.output_tokens} output tokens, "
        f"pacing {options.pacing}, {str(runner.dtype).removeprefix('torch.')}, {options.threads} threads"
    )
    facts = {"pacing": options.pacing, "dtype": str(runner.dtype), "threads": options.threads}
    bench_report("engine", title, results[1:], **facts)


if __name__ == "__main__":
    main()
