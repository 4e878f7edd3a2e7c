"""Requests on replicas that are about to be lost."""

import asyncio
from typing import Any

from gpuworker.wire.messages import Submit
from tests.gateway.harness import MODEL, GatewayProcess
from tests.gateway.peers import WorkerPeer, socket_address
from tests.gateway.raw import Response

BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


async def begin(gateway: GatewayProcess, **fields: Any) -> tuple["asyncio.Task[Response]", Submit]:
    task = asyncio.create_task(gateway.post("/v1/chat/completions", {**BODY, **fields}))
    return task, await gateway.dispatcher.submitted()


async def doomed(gateway: GatewayProcess, name: str) -> WorkerPeer:
    worker = WorkerPeer(name, socket_address(gateway.folder, name), gateway.digest)
    await gateway.dispatcher.add(worker)
    return worker


def content(response: Response) -> str:
    return str(response.json()["choices"][0]["message"]["content"])
