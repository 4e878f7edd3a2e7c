"""Under pressure a request gives something up, says so, and is served."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gpuworker.wire.messages import Pressure, Submit, unpack_ids
from tests.gateway.harness import MODEL, QUICK, SMALLER, GatewayProcess, gateway_started
from tests.gateway.peers import WorkerPeer, echo, socket_address
from tests.gateway.raw import Response
from tests.gateway.weights import store_make

pytestmark = pytest.mark.asyncio(loop_scope="package")

BODY = {"model": MODEL, "prompt": "hello", "max_tokens": 200}
WORDS = 5  # that the worker says, whatever is asked for
SAMPLES = 40  # of answers, until their length is known


@pytest_asyncio.fixture(loop_scope="package")
async def pressed() -> AsyncIterator[GatewayProcess]:
    """The tenant accepts the smaller model, which has a replica of its own."""
    async with gateway_started(
        limits=QUICK, full_key={"accepts_smaller_model": True}, with_smaller=True
    ) as gateway:
        folder, smaller = gateway.folder, _smaller_digest(gateway)
        await gateway.dispatcher.add(WorkerPeer("worker-1", socket_address(folder, "w1"), smaller))
        gateway.idle_tasks = await gateway.metric("tasks")
        yield gateway
        await gateway.idle()


def _smaller_digest(gateway: GatewayProcess) -> str:
    weights = gateway.folder / "weights"
    (digest,) = (folder.name for folder in weights.iterdir() if folder.name != gateway.digest)
    return digest


async def press(gateway: GatewayProcess, level: int, digest: str = "") -> None:
    gateway.dispatcher.send(Pressure(digest=digest or gateway.digest, level=level, wait_ms=900))
    await asyncio.sleep(0.05)


async def ask(gateway: GatewayProcess, **more: Any) -> tuple[Response, Submit]:
    """The answer, and what was submitted for it."""
    seen: list[Submit] = []
    answer = echo(gateway.dispatcher)

    def script(submit: Submit) -> None:
        seen.append(submit)
        answer(submit)

    with gateway.dispatcher.scripted(script):
        response = await gateway.post("/v1/completions", {**BODY, **more})
    return response, seen[0]


async def learn(gateway: GatewayProcess) -> None:
    for _ in range(SAMPLES):
        await ask(gateway)


async def test_without_pressure_nothing_is_given_up(pressed: GatewayProcess) -> None:
    response, submit = await ask(pressed)
    assert (submit.max_tokens, submit.digest) == (200, pressed.digest)
    assert "x-degraded" not in response.headers


async def test_outputs_become_as_short_as_three_quarters_are(pressed: GatewayProcess) -> None:
    await learn(pressed)
    await press(pressed, 3)
    response, submit = await ask(pressed)
    assert WORDS <= submit.max_tokens < 200
    assert submit.expected_tokens <= submit.max_tokens
    assert response.headers["x-degraded"] == "max_tokens"
    # what asks for no more than that gives nothing up
    response, submit = await ask(pressed, max_tokens=3)
    assert submit.max_tokens == 3
    assert "x-degraded" not in response.headers
    await press(pressed, 2)
    assert (await ask(pressed))[1].max_tokens == 200


async def test_one_choice_is_given_where_several_were_asked_for(pressed: GatewayProcess) -> None:
    await press(pressed, 2)
    response, submit = await ask(pressed, n=3, best_of=3)
    assert (submit.n, len(response.json()["choices"])) == (3, 3)
    assert "x-degraded" not in response.headers
    await press(pressed, 3)
    response, submit = await ask(pressed, n=3, best_of=3)
    assert (submit.n, submit.expected_tokens, len(response.json()["choices"])) == (1, 200, 1)
    assert response.headers["x-degraded"] == "n"
    # and what is billed is what was given
    usage = response.json()["usage"]
    assert usage["completion_tokens"] == pressed.usage_of(submit.request_id).output_tokens == WORDS
    await learn(pressed)
    response, _ = await ask(pressed, n=2)
    assert response.headers["x-degraded"] == "n, max_tokens"


async def test_only_what_is_known_is_a_reason_to_refuse_a_whole_answer(pressed: GatewayProcess) -> None:
    assert not (await ask(pressed))[1].is_whole, "it may be shorter than all that is allowed"
    assert (await ask(pressed, ignore_eos=True))[1].is_whole
    await learn(pressed)
    assert (await ask(pressed))[1].is_whole
    seen: list[Submit] = []
    answer = echo(pressed.dispatcher)

    def script(submit: Submit) -> None:
        seen.append(submit)
        answer(submit)

    with pressed.dispatcher.scripted(script):
        await pressed.post("/v1/completions", {**BODY, "stream": True})
    assert not seen[0].is_whole, "a stream's client reads as it comes"


async def test_answers_that_were_cut_do_not_make_the_next_ones_shorter(pressed: GatewayProcess) -> None:
    most: list[int] = []

    def forty_words(submit: Submit) -> None:
        most.append(submit.max_tokens)
        worker = next(worker for worker in pressed.dispatcher.workers if worker.digest == submit.digest)
        pressed.dispatcher.place(submit, worker)
        prompt, output = len(unpack_ids(submit.prompt)), min(40, submit.max_tokens)
        worker.emit(submit.sid, 0, output, " word" * output, prompt=prompt)
        worker.finish(submit.sid, "length", prompt=prompt, output=output)

    with pressed.dispatcher.scripted(forty_words):
        for level in (0, 3):
            await press(pressed, level)
            for _ in range(SAMPLES):
                await pressed.post("/v1/completions", BODY)
    learned = most[SAMPLES:]
    assert learned[0] < 200
    assert learned == [learned[0]] * SAMPLES


async def test_an_unknown_tenant_is_not_cut_short(pressed: GatewayProcess) -> None:
    await press(pressed, 3)
    assert (await ask(pressed))[1].max_tokens == 200


async def test_least_tokens_are_kept(pressed: GatewayProcess) -> None:
    await learn(pressed)
    await press(pressed, 3)
    assert (await ask(pressed, min_tokens=150))[1].max_tokens == 150


async def test_who_accepts_it_gets_the_smaller_model_at_its_price(pressed: GatewayProcess) -> None:
    await press(pressed, 4)
    response, submit = await ask(pressed)
    assert (submit.digest, submit.model) == (_smaller_digest(pressed), SMALLER)
    assert "model" in response.headers["x-degraded"]
    assert response.headers["x-model-served"] == response.json()["model"] == SMALLER
    assert pressed.usage_of(submit.request_id).model == SMALLER
    names_of_it = 3
    assert await pressed.metric("degradation_level") == 4 * names_of_it


async def test_not_where_that_one_is_pressed_too(pressed: GatewayProcess) -> None:
    await press(pressed, 4)
    await press(pressed, 4, _smaller_digest(pressed))
    assert (await ask(pressed))[1].digest == pressed.digest


async def test_not_where_this_gateway_lacks_its_tokenizer(tmp_path: Path) -> None:
    absent, digest = "0" * 64, store_make(tmp_path)
    routes = {"routes": {MODEL: digest, SMALLER: absent}, "smaller": {MODEL: SMALLER}}
    accepts = {"accepts_smaller_model": True}
    async with gateway_started(limits=QUICK, snapshot=routes, full_key=accepts) as gateway:
        await gateway.dispatcher.add(WorkerPeer("worker-1", socket_address(gateway.folder, "w1"), absent))
        await press(gateway, 4)
        response, submit = await ask(gateway)
    assert (response.status, submit.digest) == (200, gateway.digest)
    assert "x-model-served" not in response.headers


async def test_who_does_not_accept_it_keeps_the_model() -> None:
    async with gateway_started(limits=QUICK, with_smaller=True) as gateway:
        smaller = WorkerPeer("worker-1", socket_address(gateway.folder, "w1"), _smaller_digest(gateway))
        await gateway.dispatcher.add(smaller)
        await press(gateway, 5)
        response, submit = await ask(gateway)
    assert submit.digest == gateway.digest
    assert "x-model-served" not in response.headers


async def test_a_level_that_nobody_repeats_is_forgotten(pressed: GatewayProcess) -> None:
    """Its dispatcher may be gone."""
    await press(pressed, 4)
    await asyncio.sleep(5.1)
    assert (await ask(pressed))[1].digest == pressed.digest
