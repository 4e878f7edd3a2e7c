"""Tenants' data keys, under which all that the platform keeps of a tenant's text is sealed. No Django here.

A data key is 256 random bits, made with its tenant and destroyed with it: what was sealed under it is then
lost for good. At rest it is wrapped by the platform's master key. Every cipher is AES-256-GCM with a fresh
96-bit nonce. Keys and plaintexts never appear in a message or a log.
"""

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_FORMAT: Final = b"\x01"  # first byte of everything sealed or wrapped here


class DataKeyUnreadable(Exception):
    """A wrapped data key cannot be unwrapped: no such master key, or it was altered or belongs to another."""


class SealBroken(ValueError):
    """Not sealed under this data key and context, or altered since."""


class WrappedKey(NamedTuple):
    """A data key as stored. `master_key_id` names the master key that wraps it."""

    master_key_id: str
    wrapped: bytes


def data_key_generate() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def master_key_id(master_key: bytes) -> str:
    """16 hex characters of the key's hash: a different key can never go by the same id."""
    return hashlib.sha256(b"sluice master key\0" + master_key).hexdigest()[:16]


def data_key_wrap(master_keys: Sequence[bytes], tenant_id: UUID, data_key: bytes) -> WrappedKey:
    """Wrapped by the first of `master_keys`, for this tenant alone."""
    primary = master_keys[0]
    return WrappedKey(master_key_id(primary), _encrypt(primary, data_key, _wrap_context(tenant_id)))


def data_key_unwrap(master_keys: Sequence[bytes], tenant_id: UUID, wrapped: WrappedKey) -> bytes:
    """32 bytes. Raises DataKeyUnreadable."""
    master_key = next((key for key in master_keys if master_key_id(key) == wrapped.master_key_id), None)
    if master_key is None:
        raise DataKeyUnreadable(
            f"the data key of tenant {tenant_id} is wrapped by master key {wrapped.master_key_id},"
            " which is not in SLUICE_MASTER_KEY"
        )
    try:
        return _decrypt(master_key, wrapped.wrapped, _wrap_context(tenant_id))
    except SealBroken:
        raise DataKeyUnreadable(f"the data key of tenant {tenant_id} was altered") from None


def seal(data_key: bytes, plaintext: bytes, context: bytes) -> bytes:
    """Ciphertext, 29 bytes longer, that opens only under the same key and context.

    `context` says what is sealed, such as a kind and a request id. Each has a cipher key of its own, so that
    random nonces never run out: NIST SP 800-38D allows 2^32 messages a key.
    """
    return _encrypt(_context_key(data_key, context), plaintext, context)


def open_(data_key: bytes, sealed: bytes, context: bytes) -> bytes:
    """The plaintext. Raises SealBroken."""
    return _decrypt(_context_key(data_key, context), sealed, context)


def _context_key(data_key: bytes, context: bytes) -> bytes:
    return hmac.digest(data_key, b"sluice seal\0" + context, "sha256")


def _wrap_context(tenant_id: UUID) -> bytes:
    return b"sluice tenant data key\0" + tenant_id.bytes


def _encrypt(key: bytes, plaintext: bytes, associated: bytes) -> bytes:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return _FORMAT + nonce + AESGCM(key).encrypt(nonce, plaintext, associated)


def _decrypt(key: bytes, message: bytes, associated: bytes) -> bytes:
    form, nonce, body = message[:1], message[1 : 1 + _NONCE_BYTES], message[1 + _NONCE_BYTES :]
    if form != _FORMAT or len(nonce) != _NONCE_BYTES:
        raise SealBroken("not a sealed message")
    try:
        return AESGCM(key).decrypt(nonce, body, associated)
    except InvalidTag:
        raise SealBroken("the seal is broken") from None
