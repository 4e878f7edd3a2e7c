"""Values without effect, which the parser skips: what is wrong inside one is never a failure of ours."""

import pytest

from tests.gateway.harness import MODEL, GatewayProcess

pytestmark = pytest.mark.asyncio(loop_scope="package")

BROKEN = [b'"\xff"', b"1e999", b'{"a":[1e999]}']


def chat(field: str, value: bytes) -> bytes:
    messages = b'[{"role":"user","content":"hi"}]'
    return b'{"model":"%b","messages":%b,"%b":%b}' % (MODEL.encode(), messages, field.encode(), value)


@pytest.mark.parametrize("value", BROKEN)
async def test_a_broken_value_is_not_a_neutral_one(gateway: GatewayProcess, value: bytes) -> None:
    refused = await gateway.post("/v1/chat/completions", chat("verbosity", value))
    assert (refused.status, refused.json()["error"]["code"]) == (400, "unsupported_parameter")


@pytest.mark.parametrize("value", [*BROKEN, *(b"[" * depth + b"]" * depth for depth in range(900, 1100, 7))])
async def test_a_key_s_request_is_refused_where_its_body_cannot_be_compared(
    gateway: GatewayProcess, value: bytes
) -> None:
    """The keys' records cannot be reached here: what can be compared is 503."""
    headers = (gateway.authorization(), "idempotency-key: k")
    refused = await gateway.post("/v1/chat/completions", chat("metadata", value), *headers)
    assert (refused.status, refused.json()["error"]["code"]) in ((400, "invalid_json"), (503, "overloaded"))
