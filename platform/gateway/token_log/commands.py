"""What is said to Valkey: key names, entry ids, and commands packed as RESP2 bytes.

A request has one stream. Block p of attempt a has the id `a-p`, and Valkey refuses an id that is not greater
than the last one: so a newer attempt replaces an older one's log in one command, the older one's owner can
write no more, and no block is ever written twice. A tombstone, the greatest id of an attempt, says that the
rest of its answer is not here.
"""

from typing import NamedTuple
from uuid import UUID

from tenants.data_keys import open_, seal

_MAX_SEQUENCE = 2**64 - 1
FIELD = b"b"

# The time to live is set in the same step as the block: nothing stays for ever, whatever dies in between.
_OPEN = b"""local id = redis.call('XADD', KEYS[1], 'MAXLEN', 1, ARGV[1], 'b', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return id"""
_END = b"""local id = redis.call('XADD', KEYS[1], 'NOMKSTREAM', ARGV[1], 'b', ARGV[2])
if id then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return id"""
_LAST = b"""local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
return last and last[1]"""


class EntryId(NamedTuple):
    attempt: int
    position: int  # from 1

    @classmethod
    def parse(cls, raw: bytes) -> "EntryId":
        attempt, _, position = raw.partition(b"-")
        return cls(int(attempt), int(position))

    @property
    def is_tombstone(self) -> bool:
        return self.position == _MAX_SEQUENCE

    def __bytes__(self) -> bytes:
        return b"%d-%d" % self


class LogName:
    """One request's log. The tag in braces keeps all its keys in one cluster slot."""

    __slots__ = ("_context", "key")

    def __init__(self, tenant_id: UUID, request_id: UUID) -> None:
        self.key = b"sluice:log:{%b:%b}" % (str(tenant_id).encode(), str(request_id).encode())
        self._context = b"token log\0" + tenant_id.bytes + request_id.bytes

    @property
    def listener_key(self) -> bytes:
        """Exists while somebody follows."""
        return self.key + b":listener"

    @property
    def cancel_key(self) -> bytes:
        """Holds the attempt whose answer nobody wants any more."""
        return self.key + b":cancelled"

    def seal(self, data_key: bytes, at: EntryId, block: bytes) -> bytes:
        """Opens only under the same key at the same place of the same log."""
        return seal(data_key, block, self._context + bytes(at))

    def open(self, data_key: bytes, at: EntryId, sealed: bytes) -> bytes:
        """Raises SealBroken."""
        return open_(data_key, sealed, self._context + bytes(at))


def owner_key(owner: str) -> bytes:
    return b"sluice:log:owner:" + owner.encode()


def pack(*arguments: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(arguments)]
    parts += [b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments]
    return b"".join(parts)


def opening(key: bytes, at: EntryId, sealed: bytes, keep_ms: int) -> bytes:
    """Replaces what older attempts wrote."""
    return pack(b"EVAL", _OPEN, b"1", key, bytes(at), sealed, b"%d" % keep_ms)


def ending(key: bytes, at: EntryId, sealed: bytes, keep_ms: int) -> bytes:
    return pack(b"EVAL", _END, b"1", key, bytes(at), sealed, b"%d" % keep_ms)


def adding(key: bytes, at: EntryId, sealed: bytes) -> bytes:
    """Answers nil when there is no such log."""
    return pack(b"XADD", key, b"NOMKSTREAM", bytes(at), FIELD, sealed)


def burying(key: bytes, attempt: int) -> bytes:
    """Leaves nothing but a tombstone, unless a newer attempt writes there."""
    at = bytes(EntryId(attempt, _MAX_SEQUENCE))
    return pack(b"XADD", key, b"NOMKSTREAM", b"MAXLEN", b"1", at, FIELD, b"")


def last_id(key: bytes) -> bytes:
    return pack(b"EVAL", _LAST, b"1", key)


def marking(key: bytes, ttl_s: float) -> bytes:
    return pack(b"SET", key, b"1", b"PX", b"%d" % int(ttl_s * 1000))


def existing(key: bytes) -> bytes:
    return pack(b"EXISTS", key)


def reading(places: list[tuple[bytes, EntryId]], max_blocks: int) -> bytes:
    """Answers `[[key, [[id, [field, sealed]], …]], …]`, or nil. A key may occur once only."""
    keys = [key for key, _ in places]
    return pack(
        b"XREAD", b"COUNT", b"%d" % max_blocks, b"STREAMS", *keys, *(bytes(after) for _, after in places)
    )
