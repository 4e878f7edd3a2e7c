"""A worker whose tokens come from text-generation-inference, as its own client library speaks to it."""

import pytest
from text_generation import AsyncClient

from gpuworker.wire.messages import Cancel, Sampling
from tests.backends.conftest import Bench


@pytest.mark.filterwarnings("ignore:The `dict` method is deprecated")  # the library's
async def test_the_scripted_server_speaks_to_the_librarys_own_client(tgi: Bench) -> None:
    client = AsyncClient(tgi.upstream.url + "/generate_stream")  # it posts to the address that it is given
    answers = [answer async for answer in client.generate_stream("hello", max_new_tokens=4)]
    assert "".join(answer.token.text for answer in answers) == "hell"
    details = answers[-1].details
    assert details is not None
    assert details.generated_tokens == 4


async def test_an_answer_is_streamed_and_counted(tgi: Bench) -> None:
    await tgi.start()
    tgi.run(
        1,
        "hello",
        max_tokens=8,
        wants_ids=True,
        sampling=Sampling(temperature=0.7, top_p=0.9, seed=2**64 - 1),
    )
    text, end = await tgi.result(1)
    assert (text, end.reason, end.prompt_tokens, end.output_tokens) == ("hellohel", "length", 5, 8)
    (body,) = tgi.upstream.served
    assert body["stream"] is True
    parameters = body["parameters"]
    assert (parameters["temperature"], parameters["top_p"], parameters["do_sample"]) == (0.7, 0.9, True)
    given = b"".join(b"".join(frame.ids) for frame in tgi.gateways[0].frames)
    assert list(given[::4]) == list(b"hellohel")


@pytest.mark.parametrize("split", [1, 5])
async def test_an_answer_may_be_cut_at_any_byte(tgi: Bench, split: int) -> None:
    tgi.upstream.script.split = split
    await tgi.start()
    tgi.run(1, "abc", max_tokens=5, stop=["ca"])
    text, end = await tgi.result(1)
    assert (text, end.reason, end.stopped_by, end.output_tokens) == ("ab", "stop", "ca", 4)


async def test_logprobs_are_passed_on(tgi: Bench) -> None:
    gateway = await tgi.start()
    tgi.run(1, "abc", max_tokens=2, sampling=Sampling(temperature=0.0, logprobs=2))
    await tgi.result(1)
    found = [entry for frame in gateway.frames for column in frame.logprobs for entry in column]
    assert [(entry.token, entry.logprob) for entry in found] == [(97, -0.5), (98, -0.5)]
    assert found[0].top == [(97, -0.5), (98, -1.5)]


async def test_a_cancel_closes_the_servers_connection(tgi: Bench) -> None:
    tgi.upstream.script.step_s = 0.02
    gateway = await tgi.start()
    tgi.run(1, "endless", max_tokens=3000)
    await gateway.until(lambda: gateway.text(1))
    gateway.send(Cancel(sid=1))
    assert (await tgi.result(1))[1].reason == "cancelled"
    await tgi.upstream.until_left(1)


async def test_another_model_or_revision_is_not_used(tgi: Bench) -> None:
    tgi.upstream.script.revision = "other"
    await tgi.start("--upstream-revision", "wanted", "--upstream-check-s", "0.2", waits=False)
    await tgi.worker.until(lambda: any("revision 'other', not 'wanted'" in line for line in tgi.worker.log))
    assert tgi.dispatcher.reports[-1].full
    tgi.upstream.script.revision = "wanted"
    await tgi.until_ready()


@pytest.mark.parametrize(
    "fields",
    [{"n": 2}, {"ignore_eos": True}, {"sampling": Sampling(temperature=0.0, presence_penalty=1.0)}],
)
async def test_what_the_server_cannot_do_is_refused(tgi: Bench, fields: dict[str, object]) -> None:
    await tgi.start()
    tgi.run(1, "hello", **fields)
    await tgi.dispatcher.until(lambda: tgi.dispatcher.refused)
    assert tgi.dispatcher.refused[0].code == "unservable"
