"""What a token log holds: the parts of an answer, after an entry that says how to put them into words.

Entries are stored for minutes and read by other versions, so their fields only ever grow.
"""

import struct
from collections.abc import Sequence

import msgspec

from gateway.answer_parts import Finished, Head, PromptRow, Row
from gateway.errors import ApiError, LimitDetail


class Opened(msgspec.Struct, array_like=True, tag="opened", frozen=True, gc=False):
    """The first entry."""

    dialect: str  # Dialect.name
    options: bytes  # the dialect's Options, msgpack
    head: Head
    deadline_ms: int  # Unix; the answer has ended by then
    stream: bool = True  # whether its client reads it in events
    attempt: int = 0  # set by TokenLog.open, with the owner
    owner: str = ""  # incarnation of the gateway that writes


class Failed(msgspec.Struct, array_like=True, tag="failed", frozen=True, gc=False):
    """An ApiError. The last entry, as Finished is."""

    code: str
    message: str
    param: str | None = None
    retry_after_ms: int | None = None
    limit: LimitDetail | None = None

    @classmethod
    def of(cls, error: ApiError) -> "Failed":
        wait_ms = dict(error.headers).get(b"retry-after-ms")
        retry_after_ms = int(wait_ms) if wait_ms is not None else None
        return cls(error.code, error.message, error.param, retry_after_ms, error.limit)

    def error(self) -> ApiError:
        return ApiError(
            self.code,
            self.message,
            param=self.param,
            retry_after_ms=self.retry_after_ms,
            limit=self.limit,
        )


Entry = Opened | Row | PromptRow | Finished | Failed

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Entry]).decode


def is_end(entry: Entry) -> bool:
    return isinstance(entry, Finished | Failed)


def block(encoded: Sequence[bytes]) -> bytes:
    """Encoded entries as one msgpack array."""
    return array_head(len(encoded)) + b"".join(encoded)


def array_head(count: int) -> bytes:
    """What comes before so many encoded entries to make them a msgpack array."""
    return bytes((0x90 | count,)) if count < 16 else struct.pack(">BI", 0xDD, count)


def entries_of(data: bytes) -> list[Entry]:
    """Raises msgspec.DecodeError."""
    return _decode(data)
