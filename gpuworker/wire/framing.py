"""Length-prefixed msgpack over a stream: four bytes big-endian, then one message. Pure, no sockets."""

import msgspec

from gpuworker.wire.messages import AnyMessage

MAX_FRAME_BYTES = 16 * 1024 * 1024
MAX_FIRST_FRAME_BYTES = 1024 * 1024  # nobody has shown yet that they know the secret
_LENGTH_BYTES = 4
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")  # alert, handshake: as a length far more than is allowed

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)


class WireError(Exception):
    """The peer broke the protocol: oversized frame or undecodable message. The connection must be closed."""


def encode(message: AnyMessage) -> bytes:
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise WireError(f"message of {len(body)} bytes exceeds {MAX_FRAME_BYTES}")
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class FrameDecoder:
    """Reassembles messages from arbitrarily split reads; holds at most one incomplete frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._max_bytes = MAX_FIRST_FRAME_BYTES

    def feed(self, data: bytes) -> list[AnyMessage]:
        """Messages completed by `data`, in order. Raises WireError."""
        buffer = self._buffer
        buffer += data
        messages: list[AnyMessage] = []
        position = 0
        while len(buffer) - position >= _LENGTH_BYTES:
            length = int.from_bytes(buffer[position : position + _LENGTH_BYTES], "big")
            if length > self._max_bytes:
                if bytes(buffer[:2]) in _TLS_RECORDS:
                    raise WireError("the peer speaks TLS, this process does not (SLUICE_WIRE_TLS_CERT)")
                raise WireError(f"frame of {length} bytes exceeds {self._max_bytes}")
            end = position + _LENGTH_BYTES + length
            if len(buffer) < end:
                break
            try:
                messages.append(_decoder.decode(memoryview(buffer)[position + _LENGTH_BYTES : end]))
            except msgspec.MsgspecError as error:
                raise WireError(f"undecodable message: {error}") from error
            position = end
            self._max_bytes = MAX_FRAME_BYTES
        del buffer[:position]
        return messages
