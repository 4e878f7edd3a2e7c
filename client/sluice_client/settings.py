"""Which server, and with which key. `OPENAI_*` variables are not read: that key is not for this server."""

import os
from urllib.parse import urlsplit

import httpx2

from sluice_client.errors import ConfigurationError, NoApiKey

DEFAULT_BASE_URL = "http://127.0.0.1:8000/v1"


def base_url_choose(given: str | None) -> str:
    """The argument, else SLUICE_BASE_URL, else this machine; `/v1` is added where there is no path."""
    url = (given or os.environ.get("SLUICE_BASE_URL") or DEFAULT_BASE_URL).strip().rstrip("/")
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(httpx2.URL(url).host) and parts.port != 0
    except (ValueError, httpx2.InvalidURL):
        is_usable = False
    if not is_usable:
        raise ConfigurationError(f"{url!r} is no base URL; one looks like {DEFAULT_BASE_URL}")
    return url if parts.path else f"{url}/v1"


def api_key_choose(given: str | None) -> str:
    key = (given or os.environ.get("SLUICE_API_KEY") or "").strip()
    if not key:
        raise NoApiKey("no API key: set SLUICE_API_KEY, or pass api_key")
    if not (key.isascii() and key.isprintable()):
        raise NoApiKey("the API key has characters that no key has")
    return key
