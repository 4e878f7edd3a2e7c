"""A web page as a client of `/v1/stream`: it streams where its origin is allowed, and nowhere else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser

from tests.gateway.harness import MODEL, QUICK, GatewayProcess, gateway_started
from tests.gateway.peers import echo
from tests.gateway.raw import request
from tests.gateway.sockets import SERVER

pytestmark = pytest.mark.browser

PAGE = b"<!doctype html><title>app</title>"
# As docs/websocket.md has it.
STREAM = """
async ([url, key, model]) => {
  const socket = new WebSocket(url, ["sluice.v1", "openai-insecure-api-key." + key]);
  await new Promise((resolve, reject) => { socket.onopen = resolve; socket.onerror = reject; });
  let text = "";
  const answer = new Promise((resolve, reject) => {
    socket.onclose = (event) => reject(new Error("closed: " + event.code));
    socket.onmessage = (event) => {
      const frame = JSON.parse(event.data);
      if (frame.type === "chunk") {
        text += frame.data.choices[0]?.delta.content ?? "";
        socket.send(JSON.stringify({type: "ack", id: frame.id, seq: frame.seq}));
      }
      if (frame.type === "done") resolve(text);
      if (frame.type === "error") reject(new Error(frame.error.message));
    };
  });
  const body = {model, messages: [{role: "user", content: "hello"}], stream: true};
  socket.send(JSON.stringify({type: "request.create", id: "1", window: 2, body}));
  return await answer;
}
"""


@asynccontextmanager
async def site() -> AsyncIterator[str]:
    """The origin of a web server with one page."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        )
        writer.write(head % len(PAGE) + PAGE)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def streamed(browser: Browser, origin: str, gateway: GatewayProcess) -> Any:
    page = await browser.new_page()
    try:
        await page.goto(origin)
        url = f"ws://127.0.0.1:{gateway.port}/v1/stream"
        return await page.evaluate(STREAM, [url, gateway.key, MODEL])
    finally:
        await page.close()


async def test_a_page_streams_where_its_origin_is_allowed(browser: Browser) -> None:
    async with AsyncExitStack() as stack:
        allowed, other = [await stack.enter_async_context(site()) for _ in range(2)]
        gateway = await stack.enter_async_context(
            gateway_started(
                limits=QUICK,
                server_arguments=SERVER,
                environment={"SLUICE_ALLOWED_ORIGINS": allowed},
            )
        )
        await gateway.ready()
        stack.enter_context(gateway.dispatcher.scripted(echo(gateway.dispatcher)))
        assert await streamed(browser, allowed, gateway) == 'Hello wörld 你好 \u2028line "end"\n'
        assert await streamed(browser, f"http://127.0.0.1:{gateway.port}/healthz", gateway)
        with pytest.raises(Exception, match="Event"):
            await streamed(browser, other, gateway)
        metrics = (await request(gateway.port, "GET", "/metrics")).body.decode()
        assert 'code="origin_not_allowed",route="/v1/stream",status="403"} 1.0' in metrics
        await gateway.idle()
