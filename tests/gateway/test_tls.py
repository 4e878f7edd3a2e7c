"""TLS at the gateway's own door: who trusts the certificate streams, who speaks plainly is closed cleanly."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
import pytest_asyncio

from devservices.front_door import front_door
from devservices.stack import Stack
from devservices.state import up_settings
from tests.gateway.certificates import certificate_make
from tests.gateway.harness import MODEL, QUICK, GatewayProcess, gateway_started
from tests.gateway.peers import WAIT_S, echo

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def certificate(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    path, _ = certificate_make(tmp_path_factory.mktemp("tls"))
    yield path


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def tls_gateway(certificate: Path) -> AsyncIterator[GatewayProcess]:
    """The harness itself speaks plain HTTP, so its peers are started here."""
    key = certificate.with_name("key.pem")
    door = front_door({"SLUICE_TLS_CERT": str(certificate), "SLUICE_TLS_KEY": str(key)})
    arguments = door.uvicorn_arguments()
    async with gateway_started(limits=QUICK, peers=False, server_arguments=arguments) as gateway:
        await gateway.dispatcher.start()
        await asyncio.wait_for(gateway.dispatcher.hello, WAIT_S)
        await gateway.dispatcher.add(gateway.worker)
        yield gateway


def _client(gateway: GatewayProcess, trusted: ssl.SSLContext) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"https://127.0.0.1:{gateway.port}/v1",
        api_key=gateway.key,
        max_retries=0,
        http_client=openai.DefaultAsyncHttpxClient(verify=trusted, trust_env=False),
    )


async def test_a_client_that_trusts_the_certificate_streams(
    tls_gateway: GatewayProcess, certificate: Path
) -> None:
    trusted = ssl.create_default_context(cafile=str(certificate))
    async with _client(tls_gateway, trusted) as client:
        with tls_gateway.dispatcher.scripted(echo(tls_gateway.dispatcher)):
            stream = await client.completions.create(model=MODEL, prompt="x", stream=True)
            text = "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])
    assert text.startswith("Hello wörld")


async def test_a_client_that_leaves_over_tls_is_noticed(
    tls_gateway: GatewayProcess, certificate: Path
) -> None:
    trusted = ssl.create_default_context(cafile=str(certificate))
    async with _client(tls_gateway, trusted) as client:
        asked = asyncio.create_task(client.completions.create(model=MODEL, prompt="x", stream=True))
        submit = await tls_gateway.dispatcher.submitted()
        tls_gateway.dispatcher.place(submit, tls_gateway.worker)
        tls_gateway.worker.emit(submit.sid, 0, 1, "one")
        await (await asyncio.wait_for(asked, WAIT_S)).close()
    cancel = await asyncio.wait_for(tls_gateway.worker.cancels.get(), WAIT_S)
    assert (cancel.sid, cancel.reason) == (submit.sid, "cancelled")


async def test_a_client_that_does_not_trust_it_sends_nothing(tls_gateway: GatewayProcess) -> None:
    async with _client(tls_gateway, ssl.create_default_context()) as client:
        with pytest.raises(openai.APIConnectionError):
            await client.completions.create(model=MODEL, prompt="x")


async def test_our_own_look_at_the_port_speaks_tls_too(
    tls_gateway: GatewayProcess, certificate: Path, tmp_path: Path
) -> None:
    settings = up_settings(
        {
            "SLUICE_STATE": str(tmp_path),
            "SLUICE_PORT": str(tls_gateway.port),
            "SLUICE_TLS_CERT": str(certificate),
            "SLUICE_TLS_KEY": str(certificate.with_name("key.pem")),
        }
    )
    names = ("wire_secret", "secret_key", "key_pepper", "master_key")
    roles = dict.fromkeys(("owner", "app", "operator", "gateway"), "postgresql://x")
    stack = Stack(settings, dict.fromkeys(names, "00"), roles, "redis://x")
    is_ready = stack.gateway().is_ready
    assert is_ready is not None
    assert await asyncio.to_thread(is_ready, 0)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_current_versions_are_spoken(
    tls_gateway: GatewayProcess, certificate: Path, version: ssl.TLSVersion
) -> None:
    context = ssl.create_default_context(cafile=str(certificate))
    context.minimum_version = context.maximum_version = version
    _, writer = await asyncio.open_connection("127.0.0.1", tls_gateway.port, ssl=context)
    assert writer.get_extra_info("ssl_object").version() == version.name.replace("_", ".")
    writer.close()


@pytest.mark.parametrize("size", [0, 40, 70_000])
async def test_plain_http_gets_a_clean_close_and_no_traceback(tls_gateway: GatewayProcess, size: int) -> None:
    """Without a byte of HTTP; at most the alert of TLS, which is seven bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", tls_gateway.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nlong: " + b"x" * size + b"\r\n\r\n")
    received = b""
    try:
        received = await asyncio.wait_for(reader.read(), WAIT_S)
    except ConnectionResetError:
        assert size > 40  # the rest of what it sent was never read
    writer.close()
    assert len(received) <= 7
    assert "Traceback" not in tls_gateway.log.read_text()
