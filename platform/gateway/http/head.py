"""What the head of a request says beyond its parser: framing, host, offers to speak another protocol."""

from collections.abc import Iterable

from gateway.errors import ApiError

Headers = list[tuple[bytes, bytes]]  # names in lower case, values without blanks around them


def head_judge(method: bytes, http_version: str, headers: Headers) -> None:
    """Raises `invalid_http` for what proxies and servers may read in two ways (RFC 9112 §3.2, §6.1).

    And for CONNECT, which asks for a tunnel: its parser would take all that follows for another protocol.
    """
    hosts, is_chunked = 0, False
    for name, value in headers:
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding":
            is_chunked = True
            if value.lower() != b"chunked":
                raise ApiError("invalid_http", "the only transfer coding that is read here is chunked")
    if hosts != 1 and (hosts > 1 or http_version != "1.0"):
        raise ApiError("invalid_http", f"a request has one Host header; this one has {hosts}")
    if is_chunked and http_version == "1.0":
        raise ApiError("invalid_http", "HTTP/1.0 has no chunks")
    if method == b"CONNECT":
        raise ApiError("invalid_http", "this server opens no tunnels")


def is_handshake(method: bytes, http_version: str, headers: Headers) -> bool:
    """Whether an upgrade to WebSocket may open one (RFC 6455 §4.1): a GET of HTTP/1.1 without a body."""
    if method != b"GET" or http_version != "1.1":
        return False
    return not any(
        name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
        for name, value in headers
    )


def head_without_offer(
    method: bytes, url: bytes, http_version: str, headers: Iterable[tuple[bytes, bytes]]
) -> bytes:
    """The same head for a parser that must not take it for an upgrade; what `Connection` says stays."""
    lines = [b"%b %b HTTP/%b\r\n" % (method, url, http_version.encode())]
    lines += [b"%b: %b\r\n" % header for header in headers if header[0] != b"upgrade"]
    return b"".join([*lines, b"\r\n"])
