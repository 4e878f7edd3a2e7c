"""Streams that were cut and go on: no gap, no repeat, one bill, on whichever gateway.

`make faults SUITE=resume SECONDS=…` does the same for as long as one likes (`SLUICE_FAULT_SECONDS`,
`SLUICE_FAULT_SEED`).
"""

import asyncio
import os
import secrets
import time
from random import Random

import pytest

from tests.gateway.begun import RESUMABLE, STREAMED
from tests.gateway.cutting import SPEECHES, Reader, unchunked
from tests.gateway.durable import Fleet, paced
from tests.gateway.slow_client import slow_client

pytestmark = pytest.mark.asyncio(loop_scope="package")

SECONDS = float(os.environ.get("SLUICE_FAULT_SECONDS", "0"))
SEED = int(os.environ.get("SLUICE_FAULT_SEED") or secrets.randbits(32))
CLIENTS = 30  # at once
MAX_PENDING_BYTES = 1 << 20  # Limits.max_pending_bytes
CUTS = 10  # of each, about
PIECES = [
    "Hel",
    "lo ",
    "wörld",
    " 你好",
    "👩\u200d👩",
    "e\u0301",
    " שלום",
    "\u2028",
    '"\\',
    "\n\n",
    "data: ",
    "\r\n",
]


async def torn_apart(fleet: Fleet, seed: int) -> int:
    """How often one round of clients was resumed."""
    rng = Random(seed)
    words = [rng.choice(PIECES) for _ in range(40)]
    readers = [
        Reader(fleet, Random(f"{seed} {number}"), SPEECHES[number % len(SPEECHES)])
        for number in range(CLIENTS)
    ]
    with fleet.scripted(paced(words, 0.01, reason="stop")):
        await asyncio.gather(*(reader.run(rng.randint(CUTS // 2, CUTS * 2)) for reader in readers))
    for number, reader in enumerate(readers):
        speech = SPEECHES[number % len(SPEECHES)]
        assert reader.text == "".join(words), speech.path
        assert speech.end in reader.events[-1].data
        assert sum(speech.end in event.data for event in reader.events) == 1
        whole = await fleet.get(f"/v1/streams/{reader.request_id}", gateway=number % 2)
        datas = [line[6:] for line in whole.body.decode().split("\n") if line.startswith("data: ")]
        assert [event.data for event in reader.events] == datas
    return sum(reader.cuts for reader in readers)


async def test_a_follower_that_is_slow_for_a_while_gets_everything(fleet: Fleet) -> None:
    """More than may wait for it: the log is read when it reads."""
    words = [f"{number:010}" for number in range(6500)]
    with fleet.scripted(paced(words)):
        first = await fleet.post(STREAMED, RESUMABLE)
    assert len(first.body) > 1.4 * MAX_PENDING_BYTES
    path = f"/v1/streams/{first.headers['x-request-id']}"
    lines = [f"GET {path} HTTP/1.1", "host: gateway", fleet.customer.authorization, "", ""]
    async with slow_client(fleet.gateways[1].port, "\r\n".join(lines).encode()) as slow:
        await asyncio.sleep(1.0)
        await asyncio.wait_for(slow.read_to_the_end(), 15)
    body = slow.received[slow.received.index(b"\r\n\r\n") + 4 :]
    assert unchunked(body) == (first.body, True)
    await fleet.usage_rows(1)


async def test_cut_anywhere_and_resumed_anywhere(fleet: Fleet) -> None:
    resumed = rounds = 0
    until = time.monotonic() + SECONDS
    while resumed < 200 or time.monotonic() < until:
        print(f"seed {SEED + rounds}")
        resumed += await torn_apart(fleet, SEED + rounds)
        rounds += 1
        rows = await fleet.usage_rows(CLIENTS * rounds)
    assert len({row[0] for row in rows}) == CLIENTS * rounds
    assert {(row[1], row[2], row[4]) for row in rows} == {(1, "completed", 40)}
