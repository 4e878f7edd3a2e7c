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
    parts = urlsplit(text)
    port = parts.port or _PORTS.get(parts.scheme, 0)  # raises ValueError
    if not port or not parts.hostname or text.count("/") != len("//") or "@" in text:
        raise ValueError(f"{text[:200]!r} is no origin such as https://app.example")
    if not parts.netloc.startswith("["):
        return f"{parts.scheme}://{parts.hostname}:{port}"
    return f"{parts.scheme}://[{ipaddress.IPv6Address(parts.hostname)}]:{port}"


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
