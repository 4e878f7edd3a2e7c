"""The secret that names prompt prefixes, made from the one that all processes share."""

import hmac


def prefix_secret(wire_secret: str) -> bytes:
    """Another one than the wire's: whoever sees names of prefixes learns nothing about that."""
    return hmac.digest(wire_secret.encode(), b"sluice prefix names", "sha256")
