"""What the examples name, and what is put in its place: the address that was asked, a model served there.

Nothing is put there that would have to be escaped: examples stand in HTML, JSON, a shell and Python.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gateway.http.exchange import Scope

BASE_URL = "http://address.invalid"
MODEL = "name-of-a-model"
_MAX_HOST_CHARACTERS = 253  # RFC 1035 §2.3.4, without the root's dot
_MAX_MODEL_CHARACTERS = 200
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_AUTHORITY = re.compile(rf"({_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:.]+\])(?::([0-9]{{1,5}}))?")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*")


@dataclass(frozen=True, slots=True)
class Site:
    base_url: str = "http://localhost:8000"
    model: str = "tiny"

    def put_into(self, rendered: bytes) -> bytes:
        """In place of the examples' own names."""
        named = rendered.replace(BASE_URL.encode(), self.base_url.encode())
        return named.replace(MODEL.encode(), self.model.encode())


def site_of(scope: Scope, headers: Mapping[bytes, bytes], model: str) -> Site:
    """Of a request. The default in place of a host or a model that cannot be shown as it is."""
    host, scheme = headers.get(b"host", b"").decode("latin-1"), scope.get("scheme")
    base_url, named = Site().base_url, Site().model
    if scheme in ("http", "https") and _is_authority(host):
        base_url = f"{scheme}://{host.lower()}"
    if len(model) <= _MAX_MODEL_CHARACTERS and _MODEL.fullmatch(model):
        named = model
    return Site(base_url, named)


def _is_authority(text: str) -> bool:
    """A host's name or address, perhaps with a port (RFC 9110 §7.2)."""
    match = _AUTHORITY.fullmatch(text)
    if match is None or len(match[1]) > _MAX_HOST_CHARACTERS:
        return False
    if match[2] and not 0 < int(match[2]) < 1 << 16:
        return False
    if match[1].startswith("["):
        try:
            ipaddress.IPv6Address(match[1][1:-1])
        except ValueError:
            return False
    return True
