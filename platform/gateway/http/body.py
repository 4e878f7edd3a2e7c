"""Reads a request body within its bounds: size, time, and all bodies of the process together."""

import asyncio

from gateway.errors import ApiError, LimitDetail, overloaded
from gateway.http.exchange import ClientLeft, Exchange
from gateway.limits import Limits


class BodyReader:
    """`buffered_bytes` counts what all requests hold now; callers give it back with `release`."""

    def __init__(self, limits: Limits, gateway_id: str) -> None:
        self._limits = limits
        self._gateway_id = gateway_id
        self.buffered_bytes = 0

    def hold(self, size: int) -> None:
        """Of a body that is here already; the caller must `release` it. Raises ApiError."""
        allowed = self._limits.max_buffered_body_bytes
        if self.buffered_bytes + size > allowed:
            limit = LimitDetail(
                name="request_body_bytes",
                scope="gateway",
                subject=self._gateway_id,
                held=self.buffered_bytes,
                limit=allowed,
            )
            raise overloaded("too many request bodies are being read", limit=limit)
        self.buffered_bytes += size

    def release(self, size: int) -> None:
        self.buffered_bytes -= size

    async def read(self, exchange: Exchange) -> bytes:
        """The caller must `release` its length. Raises ApiError, ClientLeft."""
        try:
            declared = int(exchange.headers.get(b"content-length", b"0"))
        except ValueError:
            raise ApiError("invalid_value", "content-length is not a number") from None
        if declared > self._limits.max_body_bytes:
            raise self._too_large()
        encoding = exchange.headers.get(b"content-encoding", b"").strip().lower()
        if encoding not in (b"", b"identity"):
            name = encoding.decode("latin-1")[:64]
            raise ApiError(
                "unsupported_encoding", f"content-encoding {name!r} is not supported: send the body as it is"
            )
        chunks: list[bytes] = []
        try:
            async with asyncio.timeout(self._limits.body_timeout_s):
                return await self._collect(exchange, chunks)
        except TimeoutError:
            self.release(sum(map(len, chunks)))
            raise ApiError(
                "request_timeout",
                f"the request body did not arrive within {self._limits.body_timeout_s:g} s",
                headers=[(b"connection", b"close")],
            ) from None
        except BaseException:
            self.release(sum(map(len, chunks)))
            raise

    async def _collect(self, exchange: Exchange, chunks: list[bytes]) -> bytes:
        size = 0
        while True:
            event = await exchange.receive()
            if event["type"] == "http.disconnect":
                raise ClientLeft
            chunk: bytes = bytes(event.get("body", b""))
            more = event.get("more_body", False)
            size += len(chunk)
            if size > self._limits.max_body_bytes:
                raise self._too_large()
            self.hold(len(chunk))
            chunks.append(chunk)
            if not more:
                return b"".join(chunks)

    def _too_large(self) -> ApiError:
        return ApiError(
            "request_too_large",
            f"the request body is larger than {self._limits.max_body_bytes} bytes",
            headers=[(b"connection", b"close")],
        )
