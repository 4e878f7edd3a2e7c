"""The API key's text form: make one, take one apart, digest it. No Django here.

`sk-slc-<8 public>-<32 secret><6 checksum>`, base62. The checksum is the CRC-32 of everything before it, so a
mistyped key is refused, and a leaked one recognised, without a look-up. The secret has 190 bits: a fast keyed
hash is right, a slow one would only be a lever to exhaust the CPU.
"""

import hashlib
import hmac
import re
import secrets
import zlib
from dataclasses import dataclass
from random import Random
from typing import Final

ALPHABET: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PREFIX: Final = "sk-slc-"
PUBLIC_CHARS: Final = 8
SECRET_CHARS: Final = 32
CHECKSUM_CHARS: Final = 6
LENGTH: Final = len(PREFIX) + PUBLIC_CHARS + 1 + SECRET_CHARS + CHECKSUM_CHARS
PATTERN: Final = re.compile(
    rf"{PREFIX}(?P<public_id>[0-9A-Za-z]{{{PUBLIC_CHARS}}})-[0-9A-Za-z]{{{SECRET_CHARS + CHECKSUM_CHARS}}}"
)
PEPPER_BYTES_MIN: Final = 16

SCOPES: Final = frozenset({"completions"})


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """A well-formed key with a right checksum. Whether it was ever issued, only the digest tells."""

    public_id: str
    last4: str


def key_generate(random: Random | None = None) -> str:
    """A new key. `random` is the source of randomness; the system's, unless a test passes its own."""
    source = random or secrets.SystemRandom()
    public_id = "".join(source.choices(ALPHABET, k=PUBLIC_CHARS))
    secret = "".join(source.choices(ALPHABET, k=SECRET_CHARS))
    body = f"{PREFIX}{public_id}-{secret}"
    return body + key_checksum(body)


def key_checksum(body: str) -> str:
    """CRC-32 of the key without its checksum, in base62. 62^6 > 2^32, so six characters hold it."""
    value = zlib.crc32(body.encode("ascii"))
    digits = []
    for _ in range(CHECKSUM_CHARS):
        value, digit = divmod(value, len(ALPHABET))
        digits.append(ALPHABET[digit])
    return "".join(reversed(digits))


def key_parse(text: str) -> ParsedKey | None:
    """The key's parts, or None for text that cannot be a key of ours."""
    match = PATTERN.fullmatch(text)
    if match is None or text[-CHECKSUM_CHARS:] != key_checksum(text[:-CHECKSUM_CHARS]):
        return None
    return ParsedKey(public_id=match["public_id"], last4=text[-4:])


def key_digest(pepper: bytes, key: str) -> bytes:
    """HMAC-SHA256(pepper, key): what is stored and compared. 32 bytes."""
    if len(pepper) < PEPPER_BYTES_MIN:
        raise ValueError(f"the key pepper must have at least {PEPPER_BYTES_MIN} bytes")
    return hmac.digest(pepper, key.encode(), hashlib.sha256)
