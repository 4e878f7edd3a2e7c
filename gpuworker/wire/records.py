"""The record format of a journal: four bytes length, four bytes CRC32C of length and payload, payload. Pure.

The length is part of the checksum, so a zero-filled tail (a crash before delayed allocation) is no record.
"""

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import google_crc32c

MAX_RECORD_BYTES = 1 << 20
_LENGTH_BYTES = 4
_HEADER_BYTES = 8


class Record(NamedTuple):
    payload: bytes
    start: int
    end: int


def record_encode(payload: bytes) -> bytes:
    """Raises ValueError when the payload is empty or over MAX_RECORD_BYTES."""
    if not 0 < len(payload) <= MAX_RECORD_BYTES:
        raise ValueError(f"a record holds 1 to {MAX_RECORD_BYTES} bytes, not {len(payload)}")
    length = len(payload).to_bytes(_LENGTH_BYTES, "big")
    checksum: int = google_crc32c.value(length + payload)
    return length + checksum.to_bytes(_LENGTH_BYTES, "big") + payload


def _payload_at(data: bytes, at: int) -> bytes | None:
    size = int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
    end = at + _HEADER_BYTES + size
    if not 0 < size <= MAX_RECORD_BYTES or end > len(data):
        return None
    checksum = int.from_bytes(data[at + _LENGTH_BYTES : at + _HEADER_BYTES], "big")
    payload = data[at + _HEADER_BYTES : end]
    if google_crc32c.value(data[at : at + _LENGTH_BYTES] + payload) != checksum:
        return None
    return payload


def records_read(file: BinaryIO, start: int, end: int) -> Iterator[Record]:
    """Whole records between two offsets. Damage shows as a gap between one's end and the next one's start."""
    at = start
    file.seek(at)
    while at < end:
        header = file.read(min(_HEADER_BYTES, end - at))
        size = min(int.from_bytes(header[:_LENGTH_BYTES], "big"), MAX_RECORD_BYTES)
        payload = _payload_at(header + file.read(min(size, end - at - len(header))), 0)
        if payload is None:
            file.seek(at)
            rest = file.read(end - at)
            skipped = next((i for i in range(1, len(rest)) if _payload_at(rest, i) is not None), None)
            if skipped is None:
                return
            at += skipped
            file.seek(at)
            continue
        yield Record(payload, at, at + _HEADER_BYTES + len(payload))
        at += _HEADER_BYTES + len(payload)
