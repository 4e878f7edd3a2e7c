"""Do requests begin where their prompt's beginning is, and what does that spare? On a stack of its own.

`python -m bench.prefixes [--conversations 40] [--turns 4] [--at-a-time 2] [--pairs 8]`
Two workers of the demo model. First prompts of 1,000 tokens that nobody knows, each asked again with another
end; then conversations whose turns grow, some at a time, in any order. A turn landed where its prefix is when
the answer's usage says that nearly all of the turn before was found computed. The rules: a warm first token
takes at most 40 % of a cold one, and 90 % of the turns land. Exit status 1 when one is broken.
"""

import argparse
import asyncio
import os
import sys
from dataclasses import dataclass, field
from random import Random
from typing import Any

from bench.report import bench_folder, bench_report, median, percentile
from bench.sse_client import Timeline, completion_stream
from bench.stack import Stack

WORKERS = 2
PREFIX_TOKENS, END_TOKENS, OUTPUT_TOKENS = 1_000, 20, 8
FIRST_TURN_TOKENS, NEXT_TURN_TOKENS = 200, 80  # forty conversations fit into the workers' KV
SETTLE_S = 0.3  # until a worker has reported
LEAST_FOUND = 0.9  # of the turn before
WARM_PART, LANDED_PART = 0.4, 0.9


@dataclass
class Client:
    demo: dict[str, Any]
    rng: Random = field(default_factory=lambda: Random(1))

    def tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(1_000, 40_000) for _ in range(count)]

    async def ask(self, prompt: list[int]) -> Timeline:
        body = {"model": self.demo["model"], "max_tokens": OUTPUT_TOKENS, "temperature": 0}
        body |= {"prompt": prompt, "ignore_eos": True}
        return await completion_stream(self.demo["base_url"], self.demo["api_key"], body)


def _found(timeline: Timeline) -> int:
    """Prompt tokens that were not computed."""
    return int(timeline.usage["prompt_tokens_details"]["cached_tokens"])


async def _pairs(client: Client, count: int) -> tuple[list[Timeline], list[Timeline]]:
    """Cold and warm, one at a time."""
    cold: list[Timeline] = []
    warm: list[Timeline] = []
    for _ in range(count):
        prefix = client.tokens(PREFIX_TOKENS)
        for timelines in (cold, warm):
            timelines.append(await client.ask(prefix + client.tokens(END_TOKENS)))
            await asyncio.sleep(SETTLE_S)
    return cold, warm


async def _converse(client: Client, conversations: int, turns: int, at_a_time: int) -> list[dict[str, Any]]:
    """Of each turn, how many landed and when first tokens came."""
    said = [client.tokens(FIRST_TURN_TOKENS) for _ in range(conversations)]
    before = [0] * conversations
    rows = []
    gate = asyncio.Semaphore(at_a_time)

    async def turn(number: int) -> tuple[bool, Timeline]:
        async with gate:
            timeline = await client.ask(said[number])
        landed = _found(timeline) >= LEAST_FOUND * before[number]
        before[number] = len(said[number])
        said[number] = said[number] + client.tokens(NEXT_TURN_TOKENS)
        return landed, timeline

    for turn_number in range(turns):
        order = client.rng.sample(range(conversations), conversations)
        done = await asyncio.gather(*(turn(number) for number in order))
        await asyncio.sleep(SETTLE_S)
        rows.append(_row(f"turn {turn_number + 1}", [t for _, t in done], sum(landed for landed, _ in done)))
    return rows


def _row(what: str, timelines: list[Timeline], landed: int | None) -> dict[str, Any]:
    prompts = sum(timeline.usage["prompt_tokens"] for timeline in timelines)
    return {
        "what": what,
        "requests": len(timelines),
        "landed": landed if landed is not None else "",
        "found computed": f"{sum(map(_found, timelines)) / prompts:.0%}",
        "first token p50 ms": median([timeline.first_token_ms for timeline in timelines]),
        "first token p95 ms": percentile([timeline.first_token_ms for timeline in timelines], 0.95),
    }


async def _measure(demo: dict[str, Any], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    client = Client(demo)
    for _ in range(2 * WORKERS):  # the first of all is slower
        await client.ask(client.tokens(PREFIX_TOKENS))
    cold, warm = await _pairs(client, arguments.pairs)
    landed = sum(_found(timeline) >= LEAST_FOUND * PREFIX_TOKENS for timeline in warm)
    rows = [_row("cold, 1,000 tokens", cold, None), _row("warm", warm, landed)]
    turns = await _converse(client, arguments.conversations, arguments.turns, arguments.at_a_time)
    return [*rows, *turns]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--conversations", type=int, default=40)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--at-a-time", type=int, default=2, help="turns that run at the same time")
    parser.add_argument("--pairs", type=int, default=8)
    arguments = parser.parse_args()
    os.environ.setdefault("SLUICE_WEIGHTS", str(bench_folder().parent / "weights"))
    os.environ["SLUICE_WORKERS"] = str(WORKERS)
    stack = Stack(bench_folder() / "prefixes-state")
    try:
        rows = asyncio.run(_measure(stack.demo, arguments))
    finally:
        stack.stop()
    cold_ms, warm_ms = (row["first token p50 ms"] for row in rows[:2])
    follow_ups = rows[3:]
    part = sum(row["landed"] for row in follow_ups) / max(1, sum(row["requests"] for row in follow_ups))
    bench_report("prefixes", f"prefixes over {WORKERS} workers", rows, landed_part=part)
    holds = warm_ms <= WARM_PART * cold_ms and part >= LANDED_PART
    print(
        f"warm first token {warm_ms / cold_ms:.0%} of a cold one, {WARM_PART:.0%} at most; "
        f"{part:.0%} of turns where their prefix is, {LANDED_PART:.0%} at least: "
        f"{'holds' if holds else 'BROKEN'}"
    )
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
