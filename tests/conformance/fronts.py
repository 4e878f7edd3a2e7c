"""A front door under one server, between real clients and peers that the test speaks for."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from gpuworker.wire.messages import Ended, Submit, unpack_ids
from tests.conformance.deployment import Deployment, GatewayProcess
from tests.conformance.servers import Server
from tests.gateway.peers import Dispatcher, WorkerPeer, socket_address
from tests.gateway.raw import RawConnection, metric, request

IDLE_S = 10.0
SPOKEN = ("Hello", " wörld", " 你好", " 👩‍👩‍👧", " é")


@dataclass(slots=True)
class Front:
    """`submits` are the requests that reached the dispatcher, in order, while something was `saying` them."""

    server: Server
    deployment: Deployment
    gateway: GatewayProcess
    dispatcher: Dispatcher
    worker: WorkerPeer
    submits: list[Submit]

    @property
    def url(self) -> str:
        return self.gateway.url

    @property
    def base_url(self) -> str:
        return f"{self.gateway.url}/v1"

    @property
    def key(self) -> str:
        return self.deployment.keys["full"]

    @contextmanager
    def saying(self, *pieces: str, reason: str = "stop") -> Iterator[None]:
        """Every request is answered at once, one token a piece."""

        def script(submit: Submit) -> None:
            self.submits.append(submit)
            self.dispatcher.place(submit, self.worker)
            self.speak(submit, pieces, reason)

        with self.dispatcher.scripted(script):
            yield

    def speak(self, submit: Submit, pieces: Sequence[str], reason: str) -> None:
        prompt = len(unpack_ids(submit.prompt))
        for start, piece in enumerate(pieces):
            self.worker.emit(submit.sid, start, 1, piece, prompt=prompt)
        message = "scripted" if reason == "error" else ""
        self.worker.finish(submit.sid, reason, prompt=prompt, output=len(pieces), message=message)

    @contextmanager
    def refusing(self, code: str, *, retry_after_ms: int = 0) -> Iterator[None]:
        """Every request ends with `code` in the dispatcher."""

        def script(submit: Submit) -> None:
            self.submits.append(submit)
            self.dispatcher.send(
                Ended(sid=submit.sid, code=code, message="scripted", retry_after_ms=retry_after_ms)
            )

        with self.dispatcher.scripted(script):
            yield

    async def metric(self, name: str) -> float:
        return await metric(self.gateway.port, f"sluice_gateway_{name}")

    async def reset(self) -> None:
        """While other tests ran, the peers' event loop stood still: their connections may be new ones."""
        self.submits.clear()
        for queue in (self.dispatcher.submits, self.dispatcher.cancels, self.worker.cancels):
            while not queue.empty():
                queue.get_nowait()
        deadline = asyncio.get_running_loop().time() + IDLE_S
        while (await request(self.gateway.port, "GET", "/readyz")).status != 200:
            assert asyncio.get_running_loop().time() < deadline, "the gateway is not ready"
            await asyncio.sleep(0.02)

    async def idle(self) -> None:
        """Wait until nothing is held any more; fails when something leaks."""
        RawConnection.close_all()
        deadline = asyncio.get_running_loop().time() + IDLE_S
        while True:
            streams, requests = await self.metric("open_streams"), await self.metric("open_requests") - 1
            if not streams and not requests:
                return
            assert asyncio.get_running_loop().time() < deadline, f"left behind: {streams=} {requests=}"
            await asyncio.sleep(0.05)


@asynccontextmanager
async def front_open(deployment: Deployment, server: Server, *, name: str = "") -> AsyncIterator[Front]:
    folder = deployment.folder / (name or f"peers-{server.name}")
    folder.mkdir(exist_ok=True)
    dispatcher = Dispatcher(socket_address(folder, "d"))
    worker = WorkerPeer("worker-0", socket_address(folder, "w"), deployment.digest)
    await dispatcher.start()
    try:
        with deployment.gateway(server, dispatcher.address) as gateway:
            await asyncio.to_thread(gateway.listening_wait)
            await request(gateway.port, "GET", "/healthz")  # starts a gateway whose server has no lifespan
            await asyncio.wait_for(dispatcher.hello, IDLE_S)
            await dispatcher.add(worker)
            front = Front(server, deployment, gateway, dispatcher, worker, [])
            await front.reset()
            yield front
            RawConnection.close_all()
            gateway.process.terminate()
            await asyncio.to_thread(gateway.process.wait, 20)  # the peers answer it meanwhile
    finally:
        for peer in (dispatcher, worker):
            await peer.stop()
