"""Random histories of clients with one key per request against two gateways: one bill and one text per key.

Each client sends, is cut, resumes, ends or sends again as a seed decides. Of every history must hold:
one billed request per key, no gap, no repeat, no contradiction, and equal bodies for equal keys.
`SLUICE_FAULT_SEED` repeats the decisions of a run, `SLUICE_FAULT_SECONDS` makes it longer.
"""

import asyncio
import os
import secrets
import time
from dataclasses import dataclass, field
from random import Random

import pytest

from gpuworker.wire.messages import Submit
from tests.gateway.cutting import unchunked
from tests.gateway.durable import BODY, Fleet, key, paced
from tests.gateway.raw import RawConnection

pytestmark = pytest.mark.asyncio(loop_scope="package")

SECONDS = float(os.environ.get("SLUICE_FAULT_SECONDS", "0"))
SEED = int(os.environ.get("SLUICE_FAULT_SEED") or secrets.randbits(32))
KEYS = 12  # in one history
CLIENTS = 2  # of each key
WORDS = 30
WAIT_S = 20.0
MAX_STEPS = 6
ACTIONS = ("read", "cut", "cut", "leave", "resume", "resume", "end")


@dataclass
class Told:
    """What all clients of one key were told."""

    events: dict[str, dict[int, bytes]] = field(default_factory=dict)  # by stream id, by number
    bodies: set[bytes] = field(default_factory=set)  # complete ones, without the ids of their events
    request_ids: set[str] = field(default_factory=set)

    def take(self, body: bytes, after: int, *, is_whole: bool) -> None:
        """Events are numbered one by one from `after`; what was told before is told in the same way."""
        blocks = body.split(b"\n\n")[:-1]
        expected = after
        for block in blocks:
            lines = [line for line in block.split(b"\n") if not line.startswith(b":")]
            assert lines[0].startswith(b"id: "), block
            stream_id, _, number = lines[0][4:].decode().rpartition(":")
            expected += 1
            assert int(number) == expected
            known = self.events.setdefault(stream_id, {})
            data = b"\n".join(lines[1:])
            # An error is not part of the text: it says what became of this connection's answer.
            if b"event: error" not in data:
                assert known.setdefault(expected, data) == data
        if is_whole and after == 0 and body.endswith(b"[DONE]\n\n"):
            self.bodies.add(body)


class Client:
    """`story` is what it decided."""

    def __init__(self, fleet: Fleet, rng: Random, name: str, told: Told) -> None:
        self.story: list[str] = []
        self._fleet = fleet
        self._rng = rng
        self._name = name
        self._told = told
        self._last: tuple[str, int] | None = None  # stream and number of the last event that was read

    async def run(self) -> None:
        for _ in range(self._rng.randrange(MAX_STEPS)):
            await asyncio.sleep(self._rng.choice((0.0, 0.02, 0.1)))
            action = self._rng.choice(ACTIONS)
            self.story.append(action)
            await asyncio.wait_for(self._act(action), WAIT_S)
        self.story.append("end")
        await asyncio.wait_for(self._to_the_end(), WAIT_S)

    async def _act(self, action: str) -> None:
        if action == "resume" and self._last is not None:
            await self._resume()
        elif action == "end" and self._last is not None:
            path = f"/v1/streams/{self._last[0]}"
            ended = await self._fleet.get(path, gateway=self._rng.randrange(2), method="DELETE")
            assert ended.status in (202, 404)
        else:
            limit = {"cut": self._rng.randrange(4000), "leave": 0}.get(action)
            await self._send(limit, resumable=self._rng.random() < 0.5)

    async def _to_the_end(self) -> None:
        """Sends the request until it has the whole answer, as a client would."""
        while not self._told.bodies or self._rng.random() < 0.5:
            if await self._send(None, resumable=True):
                return
            await asyncio.sleep(0.1)

    async def _send(self, limit: int | None, *, resumable: bool) -> bool:
        headers = (key(self._name), *(("x-stream-resume: 1",) if resumable else ()))
        body = {**BODY, "stream": True, "max_tokens": 100}
        connection = await self._fleet.open(body, *headers, gateway=self._rng.randrange(2))
        if limit == 0 and self._rng.random() < 0.5:
            connection.close()
            return False
        head = await connection.head()
        if head.status != 200:
            assert head.status in (409, 503), await connection.reader.read(2000)
            connection.close()
            return False
        self._told.request_ids.add(head.headers["x-request-id"])
        return await self._read(connection, limit, 0, is_numbered=resumable)

    async def _resume(self) -> None:
        assert self._last is not None
        name, number = self._last
        path = f"/v1/streams/{name}?after={number}"
        connection = await self._fleet.open({}, gateway=self._rng.randrange(2), path=path, method="GET")
        head = await connection.head()
        if head.status == 200:
            limit = self._rng.choice((None, self._rng.randrange(2000)))
            await self._read(connection, limit, number, is_numbered=True)
        else:
            assert head.status in (410, 503), await connection.reader.read(2000)
            self._last = None
            connection.close()

    async def _read(
        self, connection: RawConnection, limit: int | None, after: int, *, is_numbered: bool
    ) -> bool:
        raw, is_whole = b"", False
        while not is_whole and (limit is None or len(raw) < limit):
            data = await connection.reader.read(65536 if limit is None else limit - len(raw))
            assert data, "the gateway closed the connection"
            raw += data
            is_whole = unchunked(raw)[1]
        if self._rng.random() < 0.5:
            connection.writer.transport.abort()
        connection.close()
        body = unchunked(raw)[0]
        if not is_numbered:
            return is_whole and body.endswith(b"[DONE]\n\n")
        self._told.take(body, after, is_whole=is_whole)
        if b"\n\n" in body:
            last = [line for line in body[: body.rindex(b"\n\n")].split(b"\n") if line.startswith(b"id: ")][
                -1
            ]
            name, _, number = last[4:].decode().rpartition(":")
            self._last = name, int(number)
        return is_whole and body.endswith(b"[DONE]\n\n")


async def history(fleet: Fleet, seed: int) -> None:
    told = {f"{seed}-{number}": Told() for number in range(KEYS)}
    clients = [
        Client(fleet, Random(f"{seed} {name} {number}"), name, of)
        for name, of in told.items()
        for number in range(CLIENTS)
    ]
    submits: list[Submit] = []
    print(f"seed {seed}", end=": ", flush=True)
    with fleet.scripted(paced(_words, 0.01, submits=submits)):
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.run())
    print(f"{len(submits)} generations of {KEYS} requests")
    for name, of in told.items():
        await fleet.settled(name, "done")
        assert len(of.bodies) == 1, name
        assert len(of.request_ids) == 1, name
        (request_id,) = of.request_ids
        rows = await fleet.sql(
            "SELECT attempt, billable_prompt_tokens + billable_cached_tokens, billable_output_tokens"
            " FROM billing_usageevent WHERE request_id = %s",
            request_id,
        )
        attempts = {submit.attempt for submit in submits if submit.request_id == request_id}
        assert {row[0] for row in rows} == attempts, name
        assert sum(row[1] > 0 for row in rows) == 1, name
        assert sum(row[2] for row in rows) == WORDS, name
    names = [submit.request_id for submit in submits]
    assert set(names) == {request_id for of in told.values() for request_id in of.request_ids}


def _words(submit: Submit) -> list[str]:
    """Of another attempt others."""
    return [f" {submit.attempt}.{number}" for number in range(WORDS)]


async def test_every_history_has_one_bill_and_one_text_for_each_key(fleet: Fleet) -> None:
    until, seed = time.monotonic() + SECONDS, SEED
    while True:
        await history(fleet, seed)
        seed += 1
        if time.monotonic() >= until and seed >= SEED + 2:
            return
