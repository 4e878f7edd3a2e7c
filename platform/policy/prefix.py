"""Names of prompt prefixes: a keyed chain of hashes, one link for each full block of KV.

The same name means the same ids, computed by the same weights, for the same tenant. The worker finds blocks
by it and the router guesses who holds them. The root carries the tenant, so that a prefix is never shared
across tenants: not by mistake, and not for measuring from outside what others asked (arXiv 2411.18191).
"""

import hmac
import struct
from collections.abc import Hashable, Iterable, Iterator, Sequence
from hashlib import blake2b

BLOCK_TOKENS = 16
ROUTER_STRIDE = 4  # the router keeps one link in so many: 64 tokens
KEY_BYTES = 16

_BLOCK = struct.Struct(f"<{BLOCK_TOKENS}I")
_DOMAIN = b"sluice.prefix.1"


def prefix_root(
    secret: bytes, tenant: str, digest: str, adapter: str, kv_dtype: str, salt: str = ""
) -> bytes:
    """The link before the first block.

    `digest` names the weights, `adapter` what was added to them ("" for nothing), `kv_dtype` the numbers of
    KV; `salt` narrows sharing within the tenant. Raises ValueError for an empty secret: without one anybody
    could compute the names of anybody's prompts.
    """
    if not secret:
        raise ValueError("prefix keys need a secret")
    tenant_salt = hmac.digest(secret, _joined(tenant, salt), "sha256")
    return blake2b(
        _joined(digest, adapter, kv_dtype), digest_size=KEY_BYTES, key=tenant_salt, person=_DOMAIN
    ).digest()


def prefix_next(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The link of a full block after `parent`. Raises ValueError when it is not exactly one block of ids."""
    if len(token_ids) != BLOCK_TOKENS:
        raise ValueError(f"{len(token_ids)} ids are not a block of {BLOCK_TOKENS}")
    return blake2b(_BLOCK.pack(*token_ids), digest_size=KEY_BYTES, key=parent, person=_DOMAIN).digest()


def router_keeps(depth: int) -> bool:
    """Whether the router is told of the link of the chain's block number `depth` (0 is the first)."""
    return depth % ROUTER_STRIDE == ROUTER_STRIDE - 1


class Chain:
    """Names of a prompt's prefixes that routers are told of, the shortest first: each is made when somebody
    asks for it, and once."""

    __slots__ = ("_made", "_rest")

    def __init__(self, names: Iterable[Hashable]) -> None:
        self._rest = iter(names)
        self._made: list[Hashable] = []

    def __iter__(self) -> Iterator[Hashable]:
        yield from self._made
        depth = len(self._made)
        while True:
            if depth == len(self._made):
                name = next(self._rest, None)
                if name is None:
                    return
                self._made.append(name)
            yield self._made[depth]
            depth += 1


def _joined(*parts: str) -> bytes:
    """Length before content: no two different tuples give the same bytes."""
    encoded = [part.encode() for part in parts]
    return b"".join(len(part).to_bytes(8, "little") + part for part in encoded)
