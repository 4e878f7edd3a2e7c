"""A tenant's chats beside 400 long generations of another, on the real stack: two workers, the real model.

`python -m bench.fairness.stack [--chats 30] [--noise 400]`
The same chats, once alone and once with the noise, on the same processes. The rule: with the noise, the 95th
percentile of the first token is at most twice the quiet one and at most 250 ms above it. Exit status 1 when
it is broken. The noise states ten minutes, so that all of it is taken in and most of it waits all the while.
"""

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from typing import Any

from bench.report import bench_folder, bench_report, median, percentile
from bench.sse_client import RequestFailed, Timeline, completion_stream
from bench.stack import Stack

WORKERS = 2
CHAT_PROMPT_TOKENS, CHAT_OUTPUT_TOKENS = 256, 32
NOISE_PROMPT_TOKENS, NOISE_OUTPUT_TOKENS, NOISE_DEADLINE_MS = 64, 400, 600_000
WARM_UP_CHATS = 8
SETTLE_S = 15.0  # the noise is established, and the step costs of full batches are learned
MOST_TIMES, MOST_ABOVE_MS = 2.0, 250.0


class Tenant:
    """Sends completions with one tenant's key. Prompts have an exact length and never come twice."""

    def __init__(
        self,
        demo: dict[str, Any],
        number: int,
        *,
        prompt_tokens: int,
        output_tokens: int,
        deadline_ms: int | None = None,
    ) -> None:
        self._base_url = demo["base_url"]
        self._api_key = demo["tenants"][number]["api_key"]
        self._body = {
            "model": demo["model"], "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True
        }  # fmt: skip
        self._prompt_tokens, self._deadline_ms = prompt_tokens, deadline_ms
        self._number = number
        self._sent = 0

    async def ask(self) -> Timeline:
        """Raises RequestFailed."""
        self._sent += 1
        first = self._sent * 7919 + self._number * 1_299_709
        ids = [1000 + (first + i * 104_729) % 40_000 for i in range(self._prompt_tokens)]
        body = {**self._body, "prompt": ids}
        return await completion_stream(self._base_url, self._api_key, body, deadline_ms=self._deadline_ms)


async def _chats(tenant: Tenant, count: int, pause_s: float) -> list[Timeline]:
    """One after the other, with a pause to read each answer."""
    timelines = []
    for _ in range(count):
        timelines.append(await tenant.ask())
        await asyncio.sleep(pause_s)
    return timelines


async def _with_noise(
    noisy: Tenant, noise: int, chatting: Tenant, chats: int, pause_s: float
) -> tuple[list[Timeline], Counter[str]]:
    """The chats' timelines, and how many noisy requests went which way while they ran."""
    tasks = [asyncio.create_task(noisy.ask()) for _ in range(noise)]
    await asyncio.sleep(SETTLE_S)
    timelines = await _chats(chatting, chats, pause_s)
    counts = Counter("unfinished" if not task.done() else _outcome(task) for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)  # each is cancelled, or counted above
    return timelines, counts


def _outcome(task: asyncio.Task[Timeline]) -> str:
    """Raises what is neither an answer nor a refusal."""
    try:
        task.result()
    except RequestFailed as failure:
        return "refused" if " 429 " in str(failure) else "failed"
    return "finished"


def _row(run: str, timelines: list[Timeline]) -> dict[str, Any]:
    first = [timeline.first_token_ms for timeline in timelines]
    gaps = [gap for timeline in timelines for gap in timeline.gaps_ms]
    return {
        "run": run,
        "chats": len(timelines),
        "first token p50 ms": median(first),
        "first token p95 ms": percentile(first, 0.95),
        "first token max ms": max(first),
        "gap p50 ms": median(gaps),
        "gap p95 ms": percentile(gaps, 0.95),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fairness.stack", description=__doc__)
    parser.add_argument("--chats", type=int, default=30)
    parser.add_argument("--pause-s", type=float, default=1.0, help="between an answer and the next question")
    parser.add_argument("--noise", type=int, default=400)
    arguments = parser.parse_args()
    os.environ.setdefault("SLUICE_WEIGHTS", str(bench_folder().parent / "weights"))
    os.environ["SLUICE_WORKERS"] = str(WORKERS)
    stack = Stack(bench_folder() / "fairness-state")
    try:
        noisy = Tenant(
            stack.demo,
            0,
            prompt_tokens=NOISE_PROMPT_TOKENS,
            output_tokens=NOISE_OUTPUT_TOKENS,
            deadline_ms=NOISE_DEADLINE_MS,
        )
        chatting = Tenant(stack.demo, 1, prompt_tokens=CHAT_PROMPT_TOKENS, output_tokens=CHAT_OUTPUT_TOKENS)
        asyncio.run(_chats(chatting, WARM_UP_CHATS, 0.2))
        quiet = asyncio.run(_chats(chatting, arguments.chats, arguments.pause_s))
        began = time.perf_counter()
        loaded, noise = asyncio.run(
            _with_noise(noisy, arguments.noise, chatting, arguments.chats, arguments.pause_s)
        )
        noise_s = time.perf_counter() - began
    finally:
        stack.stop()
    rows = [_row("quiet", quiet), _row(f"beside {arguments.noise} generations", loaded)]
    quiet_ms, loaded_ms = (row["first token p95 ms"] for row in rows)
    allowed_ms = min(MOST_TIMES * quiet_ms, quiet_ms + MOST_ABOVE_MS)
    threads = max(1, (os.cpu_count() or 1) // WORKERS)  # as devservices.stack gives them
    bench_report(
        "fairness-stack",
        f"{WORKERS} workers of {threads} thread(s): a tenant's chats, alone and beside a noisy one",
        rows,
        noise=dict(noise),
        noise_s=round(noise_s, 1),
        threads_per_worker=threads,
        allowed_p95_ms=round(allowed_ms, 1),
    )
    print(f"noise: {', '.join(f'{count} {how}' for how, count in sorted(noise.items()))}")
    holds = loaded_ms <= allowed_ms and noise["unfinished"] > 0
    print(
        f"first token p95 {loaded_ms:.0f} ms of {allowed_ms:.0f} ms allowed: {'holds' if holds else 'BROKEN'}"
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
