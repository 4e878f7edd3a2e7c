"""Who may open a socket: judged before the upgrade, so that a refusal is an HTTP status.

Servers that cannot answer an upgrade with a status of ours refuse it with theirs.
"""

from collections.abc import Mapping
from urllib.parse import parse_qsl

from gateway.access.auth import SCOPE_COMPLETIONS, scope_require
from gateway.access.origin import is_allowed
from gateway.errors import ApiError, LimitDetail, overloaded, stopping
from gateway.http.exchange import JSON_HEADERS, Scope, Send, headers_of, request_id_new
from gateway.runtime import Gateway
from gateway.serving.admission import key_authenticate
from tenants.contracts import KeyGrant

PROTOCOL = "sluice.v1"
KEY_PROTOCOL = (
    "openai-insecure-api-key."  # as browsers send a key to OpenAI's sockets: they can set no header
)
POLICY_VIOLATION = 1008
_REFUSAL_EXTENSION = "websocket.http.response"
_KEY_NAMES = frozenset({"key", "api_key", "api-key", "apikey", "token", "access_token", "authorization"})
_KEY_BEGINS = "sk-slc-"
_MAX_QUERY_FIELDS = 64


def admit(gateway: Gateway, scope: Scope) -> KeyGrant:
    """Raises ApiError."""
    if gateway.is_stopping:
        raise stopping()
    _query_judge(scope.get("query_string", b"").decode("latin-1"))
    headers = headers_of(scope)
    _origin_judge(gateway, scope, headers)
    grant = key_authenticate(gateway, _with_key(headers, scope["subprotocols"]))
    scope_require(grant, SCOPE_COMPLETIONS)
    _limits_judge(gateway, grant)
    return grant


def subprotocol(scope: Scope) -> str | None:
    """Never the key: it would be sent back."""
    return PROTOCOL if PROTOCOL in scope["subprotocols"] else None


async def refuse(scope: Scope, send: Send, error: ApiError) -> None:
    """Instead of accepting."""
    if _REFUSAL_EXTENSION not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": error.code})
        return
    body = error.envelope()
    headers = [
        *JSON_HEADERS,
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", str(request_id_new()).encode()),
        *error.headers,
    ]
    await send({"type": "websocket.http.response.start", "status": error.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


def _query_judge(query: str) -> None:
    try:
        fields = parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_QUERY_FIELDS)
    except ValueError:
        raise ApiError("invalid_value", "the address has too many parameters") from None
    for name, value in fields:
        if name.lower() in _KEY_NAMES or _KEY_BEGINS in name + value:
            message = (
                "a key must not be in the address, which logs keep: send it as `Authorization: Bearer ...` "
                f"or as the subprotocol `{KEY_PROTOCOL}<key>`, and replace the one that was sent"
            )
            raise ApiError("invalid_value", message, param="query")


def _with_key(headers: Mapping[bytes, bytes], subprotocols: list[str]) -> Mapping[bytes, bytes]:
    if b"authorization" in headers or b"x-api-key" in headers:
        return headers
    for name in subprotocols:
        if name.startswith(KEY_PROTOCOL):
            key = name.removeprefix(KEY_PROTOCOL).encode("ascii", "replace")
            return {**headers, b"authorization": b"Bearer " + key}
    return headers


def _origin_judge(gateway: Gateway, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
    origin, host = (headers.get(name, b"").decode("latin-1") for name in (b"origin", b"host"))
    is_tls = scope.get("scheme") == "wss"
    if origin and not is_allowed(origin, host, is_tls=is_tls, allowed=gateway.settings.allowed_origins):
        raise ApiError("origin_not_allowed", f"pages of {origin[:200]!r} may not open this socket")


def _limits_judge(gateway: Gateway, grant: KeyGrant) -> None:
    limits, sockets = gateway.limits, gateway.sockets
    if len(sockets) >= limits.max_sockets:
        limit = LimitDetail(
            name="sockets",
            scope="gateway",
            subject=gateway.settings.gateway_id,
            held=len(sockets),
            limit=limits.max_sockets,
        )
        raise overloaded("this gateway holds as many sockets as it can", limit=limit)
    held = sum(socket.grant.key_id == grant.key_id for socket in sockets)
    if held >= limits.max_sockets_per_key:
        raise ApiError(
            "concurrent_requests",
            f"this API key has {held} sockets open, and may have {limits.max_sockets_per_key}",
            retry_after_ms=1_000,
            limit=LimitDetail(
                name="sockets",
                scope="key",
                subject=grant.public_id,
                held=held,
                limit=limits.max_sockets_per_key,
            ),
        )
