"""The Idempotency-Key of a request, and the fingerprint that tells whether two requests are the same."""

import hashlib
import hmac
from collections.abc import Mapping

import msgspec

from gateway.errors import ApiError

MAX_KEY_CHARACTERS = 255
_HEADER = b"idempotency-key"
_FINGERPRINT = b"idempotency fingerprint\n"  # the key has other uses


def key_of(headers: Mapping[bytes, bytes]) -> str | None:
    """The key, bare or as a quoted string (RFC 8941). Raises ApiError."""
    raw = headers.get(_HEADER)
    if raw is None:
        return None
    key = raw.strip().decode("latin-1")
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    if not (0 < len(key) <= MAX_KEY_CHARACTERS and key.isascii() and key.isprintable()):
        rule = f"the idempotency key must have 1 to {MAX_KEY_CHARACTERS} printable ASCII characters"
        raise ApiError("invalid_value", rule, param="idempotency-key")
    return key


def fingerprint_of(body: bytes, path: str, data_key: bytes) -> bytes:
    """HMAC-SHA256 over path and JSON, whose blanks and order of keys do not count. Raises ApiError.

    Keyed by the tenant's data key: a short prompt could be guessed from a plain hash of it.
    """
    try:
        canonical = msgspec.json.encode(msgspec.json.decode(body), order="sorted")
    except (msgspec.MsgspecError, RecursionError) as error:  # in a value that the dialect only skipped
        raise ApiError("invalid_json", f"the request body is not valid JSON: {error}") from None
    return hmac.digest(data_key, _FINGERPRINT + path.encode() + b"\n" + canonical, hashlib.sha256)
