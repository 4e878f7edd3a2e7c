"""What all messages share, and how requests and ids are written in them."""

import uuid
from array import array
from typing import NamedTuple

import msgspec

PROTOCOL_VERSION = 1


class RowKey(NamedTuple):
    """One request as gateways, dispatcher and workers name it."""

    gateway: str  # incarnation of the gateway process, hex
    sid: int


class Message(msgspec.Struct, array_like=True, tag=True, gc=False, frozen=True, kw_only=True):
    """Base of all messages: msgpack array, the type's name first."""


def pack_ids(ids: list[int]) -> bytes:
    return array("I", ids).tobytes()


def unpack_ids(packed: bytes) -> list[int]:
    ids = array("I")
    ids.frombytes(packed)
    return ids.tolist()


def new_incarnation() -> str:
    return uuid.uuid4().hex
