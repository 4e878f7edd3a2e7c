"""Which web pages may open a socket here: this site's own, and those of the origins that were allowed.

Browsers name the page's origin and no page can forge it; other clients send none. No input, no output.
"""

import ipaddress
from collections.abc import Set
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


def origin_normal(text: str) -> str:
    """`https://Host` as `https://host:443` (RFC 6454 §4), so that equal origins are equal strings.

    Raises ValueError when it is no origin of a web page; `null` is none.
    """
    try:
        parts = urlsplit(text)
        port = parts.port or _PORTS[parts.scheme]
        host = parts.hostname or ""
        if parts.netloc.startswith("["):
            host = f"[{ipaddress.IPv6Address(host)}]"
        is_origin = bool(host) and parts.scheme in _PORTS and not any((*parts[2:], parts.username))
    except (ValueError, KeyError):
        is_origin = False
    if not is_origin:
        raise ValueError(f"{text[:200]!r} is no origin such as https://app.example")
    return f"{parts.scheme}://{host}:{port}"


def is_allowed(origin: str, host: str, *, is_tls: bool, allowed: Set[str]) -> bool:
    """`host` is that of the request, `allowed` are normal. A page that came without TLS may not use ours."""
    try:
        normal = origin_normal(origin)
        if normal in allowed:
            return True
        return normal == origin_normal(f"https://{host}") or (
            not is_tls and normal == origin_normal(f"http://{host}")
        )
    except ValueError:
        return False
