"""A request is freed when it ends: nothing of it is left for the cycle collector, which stops all others."""

import gc

from tests.gateway.harness import GatewayProcess, gateway_started
from tests.gateway.peers import echo
from tests.gateway.raw import request
from tests.gateway.server import QuickProtocol

CHAT = "/v1/chat/completions"
REQUESTS = 100
MAX_OBJECTS = 10 * REQUESTS  # a request kept in a cycle is more than sixty; the process has some of its own


class CollectingProtocol(QuickProtocol):
    """Tells how many objects in cycles it found, at a path of its own."""

    def data_received(self, data: bytes) -> None:
        if not data.startswith(b"GET /garbage"):
            super().data_received(data)
            return
        found = str(gc.collect()).encode()
        self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(found), found))


async def garbage(gateway: GatewayProcess) -> int:
    return int((await request(gateway.port, "GET", "/garbage")).body)


async def test_a_request_leaves_nothing_for_the_cycle_collector() -> None:
    arguments = ["--http", "tests.gateway.test_request_garbage:CollectingProtocol"]
    async with gateway_started(server_arguments=arguments) as gateway:
        with gateway.dispatcher.scripted(echo(gateway.dispatcher)):
            for stream in (False, True):
                await garbage(gateway)
                for _ in range(REQUESTS):
                    message = {"role": "user", "content": "hello"}
                    body = {"messages": [message], "max_tokens": 4, "stream": stream}
                    response = await gateway.post(CHAT, {"model": "tiny", **body})
                    assert response.status == 200
                assert await garbage(gateway) < MAX_OBJECTS
