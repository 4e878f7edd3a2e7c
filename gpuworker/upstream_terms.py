"""What its worker and whoever declares it must know of an upstream server. Standard library only."""

from dataclasses import dataclass
from urllib.parse import urlsplit

KINDS = ("openai", "tgi")
FLAVOURS = ("generic", "vllm", "sglang", "llama.cpp")  # of `openai`; see docs/backends.md
PATIENCE = ("connect_s", "first_token_s", "silence_s", "check_s")  # options; seconds
MAX_PATIENCE_S = 3_600.0
KEY_VARIABLE = "SLUICE_UPSTREAM_KEY"  # how the worker is told the server's key
DECLARATION = "upstream.json"  # in a folder without weights: {"model": …, "revision": …}


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int
    is_tls: bool
    path: str  # before the paths of the interface; without a slash at the end

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.is_tls else 80
        return host if self.port == default else f"{host}:{self.port}"


def endpoint_parse(url: str) -> Endpoint:
    """`http://host:8000` or `https://host/base`; a `/v1` at the end is left out. Raises ValueError."""
    if any(not "!" <= character <= "~" for character in url):
        raise ValueError("the upstream's URL must be printable ASCII without spaces")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("the upstream's URL must be http://host or https://host")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("the upstream's URL must have no credentials, query or fragment")
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)  # raises ValueError for one that is none
    return Endpoint(parts.hostname, port, is_tls, parts.path.rstrip("/").removesuffix("/v1"))


def key_problem(key: str) -> str:
    """What is wrong with a server's key, or ""; the key is not in it."""
    if any(not "!" <= character <= "~" for character in key):
        return "the upstream's key must be printable ASCII without spaces"
    return "the upstream's key is longer than 4,096 characters" if len(key) > 4_096 else ""
