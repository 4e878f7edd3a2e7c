"""The demo model in a real llama.cpp server, behind a worker: streamed, stopped, cancelled, metered."""

import asyncio
import json
import socket
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from gpuworker.wire.messages import Cancel, Grammar, Sampling, pack_ids
from tests.backends.conftest import Bench
from tests.backends.upstreams import Upstream
from tests.modelsvc.conftest import DemoModel
from tests.modelsvc.conftest import demo as demo
from tests.worker.peers import DispatcherEnd, usage_until_ended
from tests.worker.support import ROOT, WorkerProcess

START_S = 30.0
PROMPT = "The three primary colours are"

pytestmark = pytest.mark.model


def slots(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/slots", timeout=2.0) as response:
        return list(json.load(response))


async def is_busy(bench: Bench) -> bool:
    return any(slot["is_processing"] for slot in await asyncio.to_thread(slots, bench.upstream.url))


@pytest.fixture
async def llama(demo: DemoModel) -> AsyncIterator[Bench]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.backends.llama_server", str(demo.gguf), "echo-model", str(port)),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert server.stdout is not None
    async with asyncio.timeout(START_S):
        assert await server.stdout.readline(), "it did not start"
    with tempfile.TemporaryDirectory(prefix="sll-") as name:
        worker = WorkerProcess(Path(name), demo.folder)
        dispatcher = await DispatcherEnd(worker.dispatch).start()
        bench = Bench(worker, dispatcher, demo.manifest.digest, Upstream(port=port))
        try:
            await bench.start(flavour="llama.cpp")
            yield bench
        finally:
            for gateway in bench.gateways:
                await gateway.close()
            await worker.kill()
            await dispatcher.stop()
            server.kill()
            await server.wait()


def run(bench: Bench, demo: DemoModel, sid: int, prompt: str = PROMPT, **fields: object) -> int:
    ids: list[int] = Tokenizer.from_file(str(demo.folder / "tokenizer.json")).encode(prompt).ids
    fields = {"prompt": pack_ids(ids), "sampling": Sampling(temperature=0.0)} | fields
    bench.run(sid, "", **fields)
    return len(ids)


async def test_a_real_server_streams_stops_and_is_metered(llama: Bench, demo: DemoModel) -> None:
    # When a prompt runs, greedily
    prompt_tokens = run(llama, demo, 1, max_tokens=24)
    text, end = await llama.result(1)
    # Then it comes as a stream of tokens, counted as the server counts them
    assert "red" in text.lower()
    assert (end.reason, end.prompt_tokens, end.output_tokens) == ("length", prompt_tokens, 24)
    frames = [frame for frame in llama.gateways[0].frames if 1 in frame.sids]
    assert len(frames) >= 12
    assert llama.dispatcher.reports[-1].usage_mismatches == 0
    record = (await usage_until_ended(llama.worker.address, "request-1"))["request-1"]
    assert (record.prompt_tokens, record.output_tokens) == (prompt_tokens, 24)
    # And the same again with ids, logprobs and a stop string
    run(llama, demo, 2, max_tokens=24, wants_ids=True, sampling=Sampling(temperature=0.0, logprobs=3))
    again, _ = await llama.result(2)
    assert again == text
    frames = llama.gateways[0].frames
    logprobs = [entry for frame in frames if 2 in frame.sids for column in frame.logprobs for entry in column]
    assert len(logprobs) == 24
    assert all(len(entry.top) == 3 for entry in logprobs)
    stop = text[20:26]
    run(llama, demo, 3, max_tokens=24, stop=[stop])
    stopped, end = await llama.result(3)
    assert (stopped, end.reason, end.stopped_by) == (text[: text.index(stop)], "stop", stop)


async def test_a_real_server_stops_computing_when_its_client_leaves(llama: Bench, demo: DemoModel) -> None:
    gateway = llama.gateways[0]
    run(llama, demo, 1, max_tokens=3_000, ignore_eos=True)
    await gateway.until(lambda: len(gateway.text(1)) > 20)
    assert await is_busy(llama)
    gateway.send(Cancel(sid=1))
    text, end = await llama.result(1)
    assert (end.reason, bool(text)) == ("cancelled", True)
    async with asyncio.timeout(5):
        while await is_busy(llama):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


async def test_a_real_server_follows_a_schema(llama: Bench, demo: DemoModel) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    run(llama, demo, 1, max_tokens=40, grammar=Grammar(kind="json_schema", text=json.dumps(schema)))
    text, _ = await llama.result(1)
    assert text.lstrip().startswith("{")
