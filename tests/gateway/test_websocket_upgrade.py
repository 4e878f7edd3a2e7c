"""Who may open `/v1/stream`: keys, origins and limits, refused with an HTTP status before the upgrade."""

import json
import string
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol

from gateway.access.origin import is_allowed, origin_normal
from tests.gateway.harness import QUICK, GatewayProcess, gateway_started
from tests.gateway.peers import echo
from tests.gateway.sockets import SERVER, socket_open

LIMITS = {**QUICK, "max_sockets_per_key": 3}
ORIGINS = "https://App.example, http://[::1]:3000 ,https://two.example:8443"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process() -> AsyncIterator[GatewayProcess]:
    environment = {"SLUICE_ALLOWED_ORIGINS": ORIGINS}
    async with gateway_started(limits=LIMITS, server_arguments=SERVER, environment=environment) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(process: GatewayProcess) -> AsyncIterator[GatewayProcess]:
    await process.ready()
    yield process
    await process.idle()


async def refusal(gateway: GatewayProcess, path: str = "", **options: Any) -> tuple[int, dict[str, Any]]:
    """Status and error."""
    with pytest.raises(InvalidStatus) as caught:
        async with socket_open(gateway, path=path, **options):
            pass
    response = caught.value.response
    assert response.body is not None
    assert int(response.headers["content-length"]) == len(response.body)
    error: dict[str, Any] = json.loads(response.body)["error"]
    return response.status_code, error


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("unknown", 401, "invalid_api_key"),
        ("expired", 401, "invalid_api_key"),
        ("scopeless", 403, "insufficient_scope"),
    ],
)
async def test_a_key_that_may_not_is_refused(
    gateway: GatewayProcess, name: str, status: int, code: str
) -> None:
    refused, error = await refusal(gateway, key=gateway.keys[name])
    assert (refused, error["code"]) == (status, code)
    protocols = ["sluice.v1", f"openai-insecure-api-key.{gateway.keys[name]}"]
    refused, error = await refusal(gateway, additional_headers={}, subprotocols=protocols)
    assert (refused, error["code"]) == (status, code)


@pytest.mark.asyncio(loop_scope="module")
async def test_no_key_is_refused(gateway: GatewayProcess) -> None:
    refused, error = await refusal(gateway, additional_headers={})
    assert (refused, error["code"]) == (401, "invalid_api_key")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_key_comes_in_a_header_or_as_a_subprotocol_that_is_not_sent_back(
    gateway: GatewayProcess,
) -> None:
    protocols = [Subprotocol(f"openai-insecure-api-key.{gateway.key}"), Subprotocol("sluice.v1")]
    with gateway.dispatcher.scripted(echo(gateway.dispatcher)):
        for options in (
            {"additional_headers": {}, "subprotocols": protocols},
            {"additional_headers": {"x-api-key": gateway.key}, "subprotocols": protocols[1:]},
        ):
            async with socket_open(gateway, **options) as client:
                assert client.connection.subprotocol == "sluice.v1"
                assert (await client.chat("a")).last["type"] == "done"
        async with socket_open(gateway, additional_headers={}, subprotocols=protocols[:1]) as client:
            assert client.connection.subprotocol is None


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("query", ["key={}", "api_key=x", "Token=x", "a=1&b={}", "{}", "&".join("a" * 99)])
async def test_a_key_in_the_address_is_refused_and_not_logged(gateway: GatewayProcess, query: str) -> None:
    status, error = await refusal(gateway, "?" + query.format(gateway.key))
    assert (status, error["code"]) == (400, "invalid_value")
    assert gateway.key not in json.dumps(error)
    log = gateway.log.read_text()
    assert gateway.key not in log
    assert "ERROR" not in log


@pytest.mark.asyncio(loop_scope="module")
async def test_a_key_may_have_so_many_sockets(gateway: GatewayProcess) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(socket_open(gateway))
        assert await gateway.metric("open_sockets") == 3
        status, error = await refusal(gateway)
        assert (status, error["code"], error["limit"]["held"]) == (429, "concurrent_requests", 3)
        async with socket_open(gateway, key=gateway.keys["narrow"]) as other:
            assert await other.is_open()
    await gateway.idle()
    async with socket_open(gateway) as again:
        assert await again.is_open()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "origin", ["http://127.0.0.1:{}", "https://app.example", "https://APP.example:443", "http://[0::1]:3000"]
)
async def test_pages_of_this_site_and_of_allowed_origins_may(gateway: GatewayProcess, origin: str) -> None:
    async with socket_open(gateway, origin=Origin(origin.format(gateway.port))) as client:
        assert await client.is_open()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "origin",
    [
        "http://127.0.0.1",
        "http://evil.example",
        "http://app.example",
        "https://app.example:8443",
        "null",
        "x",
    ],
)
async def test_other_pages_may_not(gateway: GatewayProcess, origin: str) -> None:
    status, error = await refusal(gateway, origin=Origin(origin))
    assert (status, error["code"]) == (403, "origin_not_allowed")


NAMES = st.text(string.ascii_letters + string.digits, min_size=1, max_size=9)
PORTS = st.integers(1, 65535)


@given(NAMES, PORTS, st.sampled_from(["http", "https", "HTTP"]))
def test_own_pages_are_told_by_scheme_host_and_port(name: str, port: int, scheme: str) -> None:
    host, origin = f"{name}.example:{port}", f"{scheme}://{name}.example:{port}"
    assert is_allowed(origin, host.upper(), is_tls=False, allowed=frozenset())
    assert is_allowed(origin, host, is_tls=True, allowed=frozenset()) == (scheme == "https")
    assert not is_allowed(origin, f"x{host}", is_tls=False, allowed=frozenset())
    assert not is_allowed(
        origin + "0"[: port < 6000], host + "1"[: port >= 6000], is_tls=False, allowed=set()
    )


@given(st.text(max_size=40))
def test_whatever_a_header_says_is_judged(text: str) -> None:
    is_allowed(text, "a.example", is_tls=True, allowed=frozenset())
    is_allowed("https://a.example", text, is_tls=True, allowed=frozenset())


@pytest.mark.parametrize(
    ("origin", "normal"),
    [
        ("https://App.Example", "https://app.example:443"),
        ("http://app.example", "http://app.example:80"),
        ("http://[0:0::1]", "http://[::1]:80"),
        ("https://app.example:443", "https://app.example:443"),
    ],
)
def test_equal_origins_are_equal_strings(origin: str, normal: str) -> None:
    assert origin_normal(origin) == normal


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "app.example",
        "ftp://a",
        "https://",
        "https://a/",
        "https://a/b",
        "https://u@a",
        "http://a:99999",
        "http://[::1",
        "http://[x]",
        "https://a?b",
    ],
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no origin"):
        origin_normal(text)
