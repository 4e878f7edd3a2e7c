"""Django connection settings from PostgreSQL URLs. One alias per database role."""

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

# Django 5.1+: under ASGI every thread opens its own connection, and CONN_MAX_AGE > 0 leaves each of them open
# (60 concurrent views measured: 60 backends with 60 s, 3 with 0, 8 with a pool of 8).
POOL = {"min_size": 0, "max_size": 8, "timeout": 5}


def database_settings(url: str | None, *, variable: str, pooled: bool = True) -> dict[str, Any]:
    """Settings of one alias. Without a URL they name a host that cannot exist and tells the missing variable:
    commands that need no database still work, and none finds a server that happens to run here."""
    if not url:
        pooled = False  # a pool would retry for its whole timeout
        url = f"postgresql://nobody@{variable.lower().replace('_', '-')}-is-not-set.invalid/none"
    parts = urlsplit(url)
    if parts.scheme not in {"postgresql", "postgres"}:
        raise ValueError(f"{variable} must be a postgresql:// URL")
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    host = options.pop("host", "") or unquote(parts.hostname or "")  # ?host= carries a socket folder
    if pooled:
        options["pool"] = dict(POOL)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": str(parts.port or options.pop("port", "")),
        "CONN_MAX_AGE": 0,
        "CONN_HEALTH_CHECKS": True,  # a connection from before the server's restart is replaced, not used
        "OPTIONS": options,
    }
