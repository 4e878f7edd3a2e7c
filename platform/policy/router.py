"""Which of several replicas with room a request begins on: by predicted milliseconds, see docs/routing.md.

Never a constraint: where a prompt's beginning is held is worth the time that it spares, and no more. Among
those that are about as good, a prompt that nobody holds goes where the ring says, so that what follows it
finds it; others to the better of two that are drawn.
"""

from collections.abc import Callable, Mapping
from math import inf
from random import Random
from typing import NamedTuple

from policy.placement import LONG_PROMPT_TOKENS
from policy.room import Room
from policy.router_ring import LOAD_FACTOR, Ring
from policy.waiting import Waiting

TIE_MS = 10.0  # a prediction is not better than that
STALE_MS = 300.0  # after its last report: nothing it was sent is done, its KV has grown
SUSPECT_MS = 1_000.0  # it gets nothing while another has reported
SUSPECT_TOKENS = 2_048  # of prompts that one may be sent meanwhile, where all are suspect


class Scored(NamedTuple):
    """`is_other_pool`: the replica is kept for long prompts and this is none, or the other way round."""

    is_other_pool: bool
    score_ms: float
    minus_free_blocks: int
    key: str
    room: Room


def scores(
    rooms: Mapping[str, Room],
    waiting: Waiting,
    standing: int,
    hits: Mapping[str, float],
    now_ms: float,
    *,
    busy: float = 0.0,
    with_suspects: bool = False,
) -> list[Scored]:
    """The best first. Suspect replicas are left out. `busy`: see `Room.score_ms`."""
    is_long = waiting.prompt_tokens >= LONG_PROMPT_TOKENS
    stale_ms = now_ms - STALE_MS
    suspect_ms = -inf if with_suspects else now_ms - SUSPECT_MS
    found = []
    for key, room in rooms.items():
        replica = room.replica
        if replica.reported_ms >= suspect_ms:
            cached = hits.get(key, 0.0) if waiting.chains else waiting.cached_tokens
            score_ms = room.score_ms(
                waiting, standing, cached, is_stale=replica.reported_ms < stale_ms, busy=busy
            )
            is_other = replica.is_for_long_prompts != is_long
            found.append(Scored(is_other, score_ms, -room.free_blocks, key, room))
    found.sort()
    return found


def are_suspect(rooms: Mapping[str, Room], now_ms: float) -> bool:
    """None of those that take more has reported of late."""
    least_ms = now_ms - SUSPECT_MS
    return not any(
        room.replica.takes_more and room.replica.reported_ms >= least_ms for room in rooms.values()
    )


def suspects(rooms: Mapping[str, Room], waiting: Waiting) -> dict[str, Room]:
    """Of replicas that are suspect, those that may get this one all the same."""
    return {
        key: room
        for key, room in rooms.items()
        if not room.rows or room.placed_tokens + waiting.new_tokens <= SUSPECT_TOKENS
    }


def best_of(scored: list[Scored], fits: Callable[[Scored], bool]) -> list[Scored]:
    """The best that fits, and those about as good, which were not asked; empty: none fits."""
    number = next((number for number, one in enumerate(scored) if fits(one)), len(scored))
    if number == len(scored):
        return []
    best = scored[number]
    most_ms, end = best.score_ms + TIE_MS, number + 1
    while (
        end < len(scored)
        and scored[end].score_ms <= most_ms
        and scored[end].is_other_pool == best.is_other_pool
    ):
        end += 1
    return scored[number:end]


def draw(tied: list[Scored], fits: Callable[[Scored], bool], rng: Random) -> Scored:
    """The better of two: who decides elsewhere about the same replicas does not come to the same one."""
    if len(tied) < 3:
        return tied[0]
    drawn = tied[min(rng.sample(range(len(tied)), 2))]
    return drawn if fits(drawn) else tied[0]


def home(
    tied: list[Scored], ring: Ring, waiting: Waiting, fits: Callable[[Scored], bool], mean_rows: float
) -> Scored:
    """Of those that are about as good: where a prompt that nobody holds belongs. What follows it finds it
    there, though nothing is reported."""
    first = next((name for chain in waiting.chains for name in chain), None)
    if first is None or len(tied) < 2:
        return tied[0]
    by_key, most_rows = {one.key: one for one in tied}, LOAD_FACTOR * mean_rows + 1
    for key in ring.walk(first):
        one = by_key.get(key)
        if one is not None and one.room.rows < most_rows and fits(one):
            return one
    return tied[0]
