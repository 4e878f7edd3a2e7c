"""Who is calling: the bearer key against the grants in memory. No database, no secret in any message."""

import hmac
from collections.abc import Mapping
from datetime import UTC, datetime

from gateway.access.snapshot import Snapshot
from gateway.errors import ApiError
from tenants.contracts import KeyGrant
from tenants.keys import key_digest, key_parse

SCOPE_COMPLETIONS = "completions"
_CHALLENGE = [(b"www-authenticate", b"Bearer")]


def credentials(headers: Mapping[bytes, bytes]) -> bytes | None:
    """As an Authorization header; Anthropic's clients send the bare key in another one."""
    if (key := headers.get(b"x-api-key")) is not None and b"authorization" not in headers:
        return b"Bearer " + key
    return headers.get(b"authorization")


def authenticate(authorization: bytes | None, snapshot: Snapshot, pepper: bytes) -> KeyGrant:
    """The grant of a live key. Raises ApiError; wrong, revoked and expired keys look the same."""
    scheme, _, credentials = (authorization or b"").partition(b" ")
    if scheme.lower() != b"bearer" or not credentials.strip():
        raise ApiError(
            "invalid_api_key",
            "no API key was given; send it as `Authorization: Bearer sk-slc-...`",
            headers=_CHALLENGE,
        )
    key = credentials.strip().decode("ascii", "replace")
    parsed = key_parse(key)
    grant = snapshot.grants.get(parsed.public_id) if parsed else None
    if (
        grant is None
        or not hmac.compare_digest(key_digest(pepper, key), grant.digest)
        or (grant.expires_at is not None and grant.expires_at <= datetime.now(UTC))
    ):
        raise ApiError("invalid_api_key", "this API key is not valid", headers=_CHALLENGE)
    return grant


def scope_require(grant: KeyGrant, scope: str) -> None:
    if scope not in grant.scopes:
        raise ApiError("insufficient_scope", f"this API key lacks the scope {scope!r}")
