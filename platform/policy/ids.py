"""UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, then random bits. Time and randomness are arguments."""

from uuid import UUID


def uuid7(unix_ms: int, random_bits: int) -> UUID:
    """`random_bits`: 74 uniformly random bits."""
    if not 0 <= unix_ms < 1 << 48:
        raise ValueError(f"unix_ms out of range: {unix_ms}")
    rand_a = (random_bits >> 62) & 0xFFF
    rand_b = random_bits & ((1 << 62) - 1)
    return UUID(int=unix_ms << 80 | 0x7 << 76 | rand_a << 64 | 0b10 << 62 | rand_b)
