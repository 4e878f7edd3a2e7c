"""Which model a request gets, and which ones a key is shown."""

from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from tests.gateway.harness import MODEL, QUICK, GatewayProcess, gateway_started
from tests.gateway.peers import echo
from tests.gateway.raw import request

pytestmark = pytest.mark.asyncio(loop_scope="package")

COMPLETIONS = "/v1/completions"


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def default_gateway() -> AsyncIterator[GatewayProcess]:
    environment = {"SLUICE_DEFAULT_MODEL": "org/third", "SLUICE_DEFAULT_MODEL_ALIASES": "tgi, dummy,other"}
    async with gateway_started(limits=QUICK, environment=environment) as gateway:
        with gateway.dispatcher.scripted(echo(gateway.dispatcher)):
            yield gateway


@pytest.mark.parametrize(
    ("named", "used"),
    [
        ("tgi", "org/third"),
        ("dummy", "org/third"),
        ("other", "other"),
        (MODEL, MODEL),
        ("org/third", "org/third"),
    ],
)
async def test_an_alias_means_the_default_model_unless_it_is_one(
    default_gateway: GatewayProcess, named: str, used: str
) -> None:
    response = await default_gateway.post(COMPLETIONS, {"model": named, "prompt": "hello"})
    assert (response.status, response.json()["model"]) == (200, used)
    assert default_gateway.usage_of(response.headers["x-request-id"]).model == used


async def test_a_request_without_a_model_gets_the_default_one(default_gateway: GatewayProcess) -> None:
    response = await default_gateway.post("/generate", {"inputs": "hello"})
    assert response.status == 200
    assert default_gateway.usage_of(response.headers["x-request-id"]).model == "org/third"
    assert (await request(default_gateway.port, "GET", "/info")).json()["model_id"] == "org/third"
    for name in ("TGI", "absent", "tgi "):
        response = await default_gateway.post(COMPLETIONS, {"model": name, "prompt": "hello"})
        assert (response.status, response.json()["error"]["code"]) == (404, "model_not_found"), name


async def test_a_key_that_may_not_use_the_default_model(default_gateway: GatewayProcess) -> None:
    narrow = default_gateway.authorization("narrow")
    for body in ({"model": "tgi", "prompt": "hello"}, {"model": "org/third", "prompt": "hello"}):
        response = await default_gateway.post(COMPLETIONS, body, narrow)
        assert (response.status, response.json()["error"]["code"]) == (403, "model_not_allowed")
    assert (await default_gateway.post(COMPLETIONS, {"model": "other", "prompt": "x"}, narrow)).status == 200


async def test_without_a_default_it_must_be_named(gateway: GatewayProcess) -> None:
    for path, body in (("/generate", {"inputs": "hello"}), (COMPLETIONS, {"model": "tgi", "prompt": "x"})):
        assert (await gateway.post(path, body)).status in (404, 422)


Headers = Callable[[GatewayProcess], tuple[str, ...]]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (lambda gateway: (f"x-api-key: {gateway.key}",), 200),
        (lambda gateway: (f"X-Api-Key:   {gateway.key}  ",), 200),
        (lambda gateway: (f"authorization: bearer   {gateway.key}",), 200),
        (lambda gateway: (f"x-api-key: {gateway.keys['unknown']}",), 401),
        (lambda gateway: (f"x-api-key: Bearer {gateway.key}",), 401),
        (lambda gateway: ("x-api-key: ",), 401),
        (lambda gateway: (f"authorization: Basic {gateway.key}",), 401),
        (lambda gateway: (f"authorization: {gateway.key}",), 401),
        (lambda gateway: (f"authorization: Bearer {gateway.key} x",), 401),
        (lambda gateway: (f"authorization: Bearer {gateway.key[:-1]}",), 401),
        (lambda gateway: ("authorization: Bearer", f"x-api-key: {gateway.key}"), 401),  # the first one counts
        (lambda gateway: (f"authorization: Bearer {gateway.keys['unknown']}", gateway.authorization()), 401),
        (lambda gateway: (gateway.authorization(), gateway.authorization()), 401),  # never two
        (lambda gateway: (f"x-api-key: {gateway.key}", f"x-api-key: {gateway.key}"), 401),
    ],
)
async def test_the_models_of_a_key(gateway: GatewayProcess, headers: Headers, status: int) -> None:
    response = await request(gateway.port, "GET", "/v1/models", b"", *headers(gateway))
    assert response.status == status
    if status == 200:
        assert [model["id"] for model in response.json()["data"]] == ["org/third", "other", MODEL]
    else:
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"


async def test_a_key_sees_its_own_models_alone(gateway: GatewayProcess) -> None:
    narrow = f"x-api-key: {gateway.keys['narrow']}"
    listed = await request(gateway.port, "GET", "/v1/models", b"", narrow)
    assert [model["id"] for model in listed.json()["data"]] == ["other"]
    hidden = await request(gateway.port, "GET", f"/v1/models/{MODEL}", b"", narrow)
    absent = await request(gateway.port, "GET", "/v1/models/none", b"", narrow)
    assert (hidden.status, absent.status) == (404, 404)
    assert hidden.body.replace(MODEL.encode(), b"none") == absent.body
