"""A stream that a test holds in its hands: begun, and read as far as it was sent."""

import asyncio
from dataclasses import dataclass
from typing import Any

from gpuworker.wire.messages import Submit
from tests.gateway.durable import BODY, Fleet
from tests.gateway.raw import RawConnection, Response

STREAMED = {**BODY, "stream": True}
RESUMABLE = "x-stream-resume: 1"
WORDS = ["one", " two", " three", " four"]
WAIT_S = 15.0


@dataclass
class Begun:
    """Of the fleet's first gateway; its client has read the first `said` words."""

    fleet: Fleet
    connection: RawConnection
    submit: Submit
    request_id: str
    said: int

    def say(self, text: str) -> None:
        """One more token."""
        self.fleet.gateways[0].worker.emit(self.submit.sid, self.said, 1, text)
        self.said += 1

    def finish(self, reason: str = "stop") -> None:
        self.fleet.gateways[0].worker.finish(self.submit.sid, reason, output=self.said)

    def finish_words(self) -> None:
        for word in WORDS[self.said :]:
            self.say(word)
        self.finish()

    async def rest(self) -> bytes:
        return await rest(self.connection)

    async def is_cancelled(self, within_s: float) -> bool:
        try:
            await asyncio.wait_for(self.fleet.gateways[0].worker.cancels.get(), within_s)
        except TimeoutError:
            return False
        return True

    async def get(self, after: int = 0, gateway: int = 1) -> Response:
        return await self.fleet.get(f"/v1/streams/{self.request_id}?after={after}", gateway=gateway)

    async def follow(self, after: int = 0, gateway: int = 1) -> RawConnection:
        path = f"/v1/streams/{self.request_id}?after={after}"
        return await self.fleet.open({}, gateway=gateway, path=path, method="GET")

    async def delete(self, gateway: int) -> Response:
        return await self.fleet.get(f"/v1/streams/{self.request_id}", gateway=gateway, method="DELETE")


async def begin(fleet: Fleet, *headers: str, body: dict[str, Any] = STREAMED, words: int = 1) -> Begun:
    connection = await fleet.open(body, *headers)
    gateway = fleet.gateways[0]
    submit = await gateway.dispatcher.submitted()
    gateway.dispatcher.place(submit, gateway.worker)
    for number in range(words):
        gateway.worker.emit(submit.sid, number, 1, WORDS[number])
    request_id = (await connection.head()).headers["x-request-id"]
    read = b""
    while WORDS[words - 1].encode() not in read:
        read += await connection.chunk()
    return Begun(fleet, connection, submit, request_id, words)


async def rest(connection: RawConnection) -> bytes:
    body = b""
    while chunk := await asyncio.wait_for(connection.chunk(), WAIT_S):
        body += chunk
    return body


def code(response: Response) -> tuple[int, str]:
    return response.status, response.json()["error"]["code"]
