"""Real workers behind a real dispatcher: turns begin where their prefix is, elsewhere when that is full."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import pytest

from gpuworker.wire.messages import Cancel, End
from tests.worker.fleet import Fleet
from tests.worker.support import weights_make

CONVERSATIONS, TURNS = 40, 3
FIRST_TURN_TOKENS, NEXT_TURN_TOKENS, SYSTEM_TOKENS = 200, 80, 1_000  # a letter is a token
AT_A_TIME = 4
ROWS = 4  # of each worker
LEAST_FOUND = 0.9  # of the turn before, where a turn has landed
LANDED = 0.8  # of the turns; by chance it is a half


@pytest.fixture
async def fleet(folder: Path) -> AsyncIterator[Fleet]:
    fleet = await Fleet(folder, folder / "weights", weights_make(folder / "weights")).start()
    for name in ("one", "other"):
        options = ("--kv-blocks", "4096", "--max-rows", str(ROWS), "--target-itl-ms", "off")
        await fleet.worker_start(name, "both", "--step-ms", "2", *options)
    yield fleet
    await fleet.stop()


class Speakers:
    """Of turns that have nothing in common but what was said before in the same conversation."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.rng, self.sids = fleet, Random(1), count(1)

    def says(self, tokens: int) -> str:
        return "".join(self.rng.choices("abcdefghijklmnopqrstuvwxyz", k=tokens))

    async def ask(self, text: str) -> End:
        _, end = await self.fleet.run(next(self.sids), text, max_tokens=2)
        return end


async def test_turns_land_where_their_prefix_is(fleet: Fleet) -> None:
    # Given conversations whose turns grow, four at a time and in any order
    speakers = Speakers(fleet)
    said = [speakers.says(FIRST_TURN_TOKENS) for _ in range(CONVERSATIONS)]
    before = [0] * CONVERSATIONS
    gate, landed = asyncio.Semaphore(AT_A_TIME), 0

    async def turn(number: int) -> bool:
        async with gate:
            end = await speakers.ask(said[number])
        found = end.cached_tokens >= LEAST_FOUND * before[number]
        before[number] = len(said[number])
        said[number] += speakers.says(NEXT_TURN_TOKENS)
        return found

    for turn_number in range(TURNS):
        order = speakers.rng.sample(range(CONVERSATIONS), CONVERSATIONS)
        found = await asyncio.gather(*map(turn, order))
        landed += sum(found) if turn_number else 0
        await fleet.fresh()
    # Then nearly all find what was computed before, and both workers have a good part of them
    assert landed >= LANDED * CONVERSATIONS * (TURNS - 1)
    shares = [list(fleet.placed.values()).count(worker) for worker in fleet.gateways]
    assert min(shares) > 0.2 * CONVERSATIONS * TURNS


async def test_where_the_worker_that_holds_the_prefix_is_full_the_other_is_used(fleet: Fleet) -> None:
    # Given a prefix of 1,000 tokens that one worker holds
    speakers = Speakers(fleet)
    system = speakers.says(SYSTEM_TOKENS)
    await speakers.ask(system + speakers.says(20))
    await fleet.until_idle()
    # When more requests begin with it than that worker has rows for
    sids = [next(speakers.sids) for _ in range(ROWS + 2)]
    for sid in sids:
        await fleet.submit(sid, system + speakers.says(20), max_tokens=3_000)
    # Then all run at once: on the holder as many as it has rows for, their prefix not computed anew
    for sid in sids:
        gateway = await fleet.gateway_of(sid)
        await gateway.until(partial(gateway.text, sid))
    holder, other = fleet.placed[1], (fleet.gateways.keys() - {fleet.placed[1]}).pop()
    assert [fleet.placed[sid] for sid in sids] == [holder] * ROWS + [other] * 2
    assert not any(gateway.ends.keys() & set(sids) for gateway in fleet.gateways.values())
    for sid in sids:
        gateway = await fleet.gateway_of(sid)
        gateway.send(Cancel(sid=sid))
        await gateway.until_ended(sid)
        if fleet.placed[sid] == holder:
            assert gateway.ends[sid].cached_tokens >= LEAST_FOUND * SYSTEM_TOKENS
