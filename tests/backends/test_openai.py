"""A worker whose tokens come from an OpenAI-compatible server: what is asked, told and counted."""

import asyncio
import ssl
from pathlib import Path

import pytest

from gpuworker.wire.messages import Cancel, Grammar, Pause, Resume, Sampling, pack_ids
from tests.backends.conftest import KEY, Bench
from tests.gateway.certificates import certificate_make
from tests.worker.peers import usage_until_ended


async def test_an_answer_is_streamed_counted_and_journaled(bench: Bench) -> None:
    # Given an upstream that tells token ids
    await bench.start()
    # When a request runs
    bench.run(1, "hello", max_tokens=8)
    text, end = await bench.result(1)
    # Then its text, its counts and its record are those of any other replica
    assert (text, end.reason) == ("hellohel", "length")
    assert (end.prompt_tokens, end.cached_tokens, end.output_tokens) == (5, 2, 8)
    record = (await usage_until_ended(bench.worker.address, "request-1"))["request-1"]
    assert (record.prompt_tokens, record.output_tokens, record.reason) == (5, 8, "length")
    # And the upstream got ids, the sampling in full, a key, and a salt that only this tenant has
    (body,) = bench.upstream.served
    assert body["prompt"] == list(b"hello")
    assert (body["model"], body["stream"], body["temperature"], body["top_k"]) == ("echo-model", True, 0.0, 0)
    assert len(body["cache_salt"]) >= 32
    assert any(f"Authorization: Bearer {KEY}\r\n" in head for head in bench.upstream.heads)


@pytest.mark.parametrize("split", [1, 2, 7, 64])
async def test_an_answer_may_be_cut_at_any_byte(bench: Bench, split: int) -> None:
    bench.upstream.script.split = split
    bench.upstream.script.line_end = b"\r\n" if split % 2 else b"\n"
    await bench.start()
    bench.run(1, "abc", max_tokens=7)
    text, end = await bench.result(1)
    assert (text, end.output_tokens, end.reason) == ("abcabca", 7, "length")


@pytest.mark.parametrize("flavour", ["vllm", "sglang", "llama.cpp", "generic"])
async def test_without_ids_a_piece_counts_as_a_token_and_usage_tells_the_rest(
    bench: Bench, flavour: str
) -> None:
    # Given an upstream that tells no ids and sends two tokens at a time
    bench.upstream.script.ids = False
    bench.upstream.script.tokens_of_chunk = 2
    await bench.start(flavour=flavour)
    bench.run(1, "hello", max_tokens=8)
    text, end = await bench.result(1)
    # Then all eight are counted, without a gap
    assert (text, end.output_tokens) == ("hellohel", 8)
    assert bench.dispatcher.reports[-1].usage_mismatches == 0


async def test_usage_beyond_what_was_seen_is_not_billed_and_is_told(bench: Bench) -> None:
    bench.upstream.script.usage_factor = 10
    await bench.start()
    bench.run(1, "hello", max_tokens=20)
    _, end = await bench.result(1)
    assert end.output_tokens <= 23
    await bench.dispatcher.until(lambda: bench.dispatcher.reports[-1].usage_mismatches == 1)
    await bench.worker.until(lambda: any("told 200 output tokens" in line for line in bench.worker.log))


async def test_no_usage_is_no_mismatch(bench: Bench) -> None:
    bench.upstream.script.has_usage = bench.upstream.script.ids = False
    await bench.start()
    bench.run(1, "hello", max_tokens=8)
    _, end = await bench.result(1)
    assert end.output_tokens == 8


@pytest.mark.parametrize("flavour", ["vllm", "generic"])
async def test_a_stop_string_is_found_whoever_looks_for_it(bench: Bench, flavour: str) -> None:
    await bench.start(flavour=flavour)
    bench.run(1, "abcdefgh", max_tokens=500, stop=["xx", "de"])
    text, end = await bench.result(1)
    assert (text, end.reason, end.stopped_by) == ("abc", "stop", "de")
    assert end.output_tokens == 5


async def test_an_upstream_that_does_not_stop_is_left(bench: Bench) -> None:
    bench.upstream.script.step_s = 0.01
    await bench.start(flavour="generic")
    bench.run(1, "abcdefgh", max_tokens=500, stop=["de"])
    await bench.result(1)
    await bench.upstream.until_left(1)


async def test_a_stop_id_ends_where_ids_are_told(bench: Bench) -> None:
    await bench.start("--upstream-silence-s", "5")
    bench.run(1, "abcdefgh", max_tokens=50, stop_ids=[256, ord("d")])
    await bench.dispatcher.until(lambda: bench.upstream.served)
    assert bench.upstream.served[0]["stop_token_ids"] == [ord("d")]  # 256 ends every text there as well


async def test_a_cancel_closes_the_upstreams_connection_at_once(bench: Bench) -> None:
    bench.upstream.script.step_s = 0.02
    gateway = await bench.start()
    bench.run(1, "endless", max_tokens=3000)
    await gateway.until(lambda: gateway.text(1))
    left_at = asyncio.get_running_loop().time()
    gateway.send(Cancel(sid=1))
    text, end = await bench.result(1)
    await bench.upstream.until_left(1)
    assert end.reason == "cancelled"
    assert end.output_tokens == len(text)
    assert bench.upstream.closed[0] - left_at < 0.05


async def test_a_gateway_that_is_lost_leaves_the_upstream(bench: Bench) -> None:
    bench.upstream.script.step_s = 0.02
    gateway = await bench.start()
    bench.run(1, "endless", max_tokens=3000)
    await gateway.until(lambda: gateway.text(1))
    assert gateway.connection is not None
    gateway.connection.abort("the gateway died")
    await bench.upstream.until_left(1)
    assert (await usage_until_ended(bench.worker.address, "request-1"))["request-1"].reason == "gateway_lost"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"n": 2}, "n above 1"),
        ({"sampling": Sampling(temperature=0.0, top_k=5)}, "top_k"),
        ({"sampling": Sampling(temperature=0.0, logprobs=2)}, "logprobs"),
        ({"sampling": Sampling(temperature=0.0, min_tokens=2)}, "min_tokens"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"grammar": Grammar(kind="regex", text="a+")}, "grammar"),
        ({"stop_ids": [7]}, "stop_token_ids"),
    ],
)
async def test_what_an_unknown_server_may_not_understand_is_refused(
    bench: Bench, fields: dict[str, object], words: str
) -> None:
    await bench.start(flavour="generic")
    bench.run(1, "hello", **fields)
    await bench.dispatcher.until(lambda: bench.dispatcher.refused)
    refused = bench.dispatcher.refused[0]
    assert refused.code == "unservable"
    assert words in refused.message


async def test_a_prompt_that_spells_a_control_token_is_not_said_as_text(bench: Bench) -> None:
    await bench.start(flavour="generic")
    bench.run(1, "say <|end|> twice")
    await bench.dispatcher.until(lambda: bench.dispatcher.refused)
    assert "control token" in bench.dispatcher.refused[0].message


async def test_ids_are_given_where_they_are_wanted_so_that_another_replica_can_go_on(bench: Bench) -> None:
    gateway = await bench.start()
    bench.run(1, "hello", max_tokens=6, wants_ids=True)
    await bench.result(1)
    given = b"".join(b"".join(frame.ids) for frame in gateway.frames)
    assert list(given[::4]) == list(b"helloh")
    # And it goes on after those of another
    bench.run(2, "", prompt=pack_ids(list(b"hello" + b"hell")), emitted=4, max_tokens=6, stop=["zz"])
    await gateway.until_ended(2)
    end = gateway.ends[2]
    assert (end.prompt_tokens, end.output_tokens) == (5, 6)
    assert bench.upstream.served[-1]["max_tokens"] == 2


async def test_an_echoed_prompt_comes_first_and_alone_needs_no_upstream(bench: Bench) -> None:
    await bench.start()
    bench.run(1, "hello", max_tokens=3, echo=True)
    bench.run(2, "alone", max_tokens=0, echo=True)
    assert (await bench.result(1))[0] == "hellohel"
    assert (await bench.result(2))[0] == "alone"
    assert len(bench.upstream.served) == 1


async def test_a_paused_row_holds_the_upstream_up(bench: Bench) -> None:
    gateway = await bench.start("--upstream-silence-s", "0.5")
    bench.upstream.script.step_s = 0.005
    bench.run(1, "slow", max_tokens=200)
    await gateway.until(lambda: len(gateway.text(1)) > 3)
    gateway.send(Pause(sid=1))
    await asyncio.sleep(1.2)
    assert not gateway.ends
    gateway.send(Resume(sid=1))
    text, end = await bench.result(1)
    assert (len(text), end.reason) == (200, "length")


async def test_a_server_behind_tls_is_used_only_if_its_certificate_is_trusted(
    bench: Bench, folder: Path
) -> None:
    certificate, key = certificate_make(folder)
    await bench.upstream.stop()
    bench.upstream.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    bench.upstream.tls.load_cert_chain(certificate, key)
    await bench.upstream.start()
    await bench.start(waits=False)
    await bench.worker.until(lambda: any("certificate verify failed" in line for line in bench.worker.log))
    assert bench.dispatcher.reports[-1].full
    await bench.worker.kill()
    bench.environment = {"SSL_CERT_FILE": str(certificate)}
    bench.gateways.clear()
    await bench.start()
    bench.run(1, "hello", max_tokens=5)
    assert (await bench.result(1))[0] == "hello"
