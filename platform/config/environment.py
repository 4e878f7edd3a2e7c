"""Every setting a Sluice process reads from its environment, by name, in one place. No Django here.

`manage.py up` sets all of them for the processes it starts; production sets them itself.
"""

import os
import re
from pathlib import Path

MASTER_KEY_BYTES = 32


class MissingSetting(Exception):
    """A required environment variable is absent; the message names it and says what it is for."""


def _required(name: str, purpose: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise MissingSetting(f"{name} is not set ({purpose}); `make up` sets it, see docs/operations.md")
    return value


def state_dir() -> Path:
    """Everything Sluice keeps on disk lives below this folder."""
    return Path(os.environ.get("SLUICE_STATE", "var")).resolve()


def weights_dir() -> Path:
    return Path(os.environ.get("SLUICE_WEIGHTS", state_dir() / "weights"))


def spool_dir() -> Path:
    """Folder of this process's usage spool."""
    return Path(_required("SLUICE_SPOOL", "folder of this gateway's usage spool"))


def dispatch_address() -> str:
    """Of the dispatcher; several, separated by commas, where others stand by."""
    return _required("SLUICE_DISPATCH", "dispatcher address, unix:/path or tcp://host:port")


def dispatch_addresses() -> tuple[str, ...]:
    """Of all dispatchers; none where the setting is absent."""
    return tuple(dict.fromkeys(_list("SLUICE_DISPATCH")))


def wire_secret() -> str:
    return _required("SLUICE_WIRE_SECRET", "shared secret of gateways, dispatcher, workers and controller")


def wire_tls_files() -> tuple[str, str, str]:
    """PEM files of this process's certificate, its key, and the authority, for TLS between processes: all or
    none (`gpuworker.wire.tls`)."""
    names = ("SLUICE_WIRE_TLS_CERT", "SLUICE_WIRE_TLS_KEY", "SLUICE_WIRE_TLS_CA")
    certificate, key, authority = (os.environ.get(name, "") for name in names)
    return certificate, key, authority


def gateway_id() -> str:
    return os.environ.get("SLUICE_GATEWAY_ID", "gateway-0")


def key_pepper() -> bytes:
    """Secret under which API keys are hashed. Losing it makes every issued key useless."""
    return bytes.fromhex(_required("SLUICE_KEY_PEPPER", "hex secret under which API keys are hashed"))


def master_keys() -> tuple[bytes, ...]:
    """Keys of 32 bytes that wrap the tenants' data keys: the first wraps, all unwrap. Losing them loses
    every answer that is kept. Raises MissingSetting, ValueError; no message holds a key."""
    text = _required("SLUICE_MASTER_KEY", "hex key of 32 bytes that wraps the tenants' data keys")
    try:
        keys = tuple(bytes.fromhex(part) for part in text.split(","))
    except ValueError:
        keys = ()
    if not keys or any(len(key) != MASTER_KEY_BYTES for key in keys):
        raise ValueError("SLUICE_MASTER_KEY must be 64 hex digits, or several such keys separated by commas")
    return keys


def gateway_database_url() -> str:
    return _required("SLUICE_DB_GATEWAY", "PostgreSQL URL of the gateway's role")


def redis_url() -> str:
    return _required("REDIS_URL", "Valkey or Redis URL")


def quota_url() -> str:
    """Valkey of the tenants' quotas, also several hosts or Sentinels; that of REDIS_URL if unset."""
    return os.environ.get("SLUICE_QUOTA_URL") or redis_url()


def app_database_url() -> str:
    return _required("SLUICE_DB_APP", "PostgreSQL URL of the tenant-scoped application role")


def operator_database_url() -> str:
    return _required("SLUICE_DB_OPERATOR", "PostgreSQL URL of the operators' role")


def owner_database_url() -> str | None:
    """URL of the role that owns the schema; only processes that migrate have it."""
    return os.environ.get("SLUICE_DB_OWNER") or None


def role_prefix() -> str:
    """Prefix of the four database roles: `<prefix>_owner`, `_app`, `_operator`, `_gateway`."""
    prefix = os.environ.get("SLUICE_DB_ROLE_PREFIX", "sluice")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,40}", prefix):
        raise ValueError(f"SLUICE_DB_ROLE_PREFIX must be a lower-case SQL name, got {prefix!r}")
    return prefix


def secret_key() -> str:
    return _required("SLUICE_SECRET_KEY", "Django's signing key, at least 50 random characters")


def allowed_hosts() -> list[str]:
    """Host names this site answers to, comma separated in SLUICE_ALLOWED_HOSTS."""
    hosts = os.environ.get("SLUICE_ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]")
    return [host.strip() for host in hosts.split(",") if host.strip()]


def default_model() -> str:
    """Slug of the model that requests without a model name get; empty: they are refused."""
    return os.environ.get("SLUICE_DEFAULT_MODEL", "")


def default_model_aliases() -> frozenset[str]:
    """Names that mean the default model, comma separated: some clients send `tgi` or `dummy` for none."""
    return frozenset(_list("SLUICE_DEFAULT_MODEL_ALIASES"))


def allowed_origins() -> frozenset[str]:
    """Origins (`https://app.example`) whose pages may open `/v1/stream`, beside the site's own."""
    return frozenset(_list("SLUICE_ALLOWED_ORIGINS"))


def drain_s() -> int:
    """How long a gateway that stops lets its streams run: its server's graceful timeout says the same."""
    text = os.environ.get("SLUICE_DRAIN_S", "10")
    if not re.fullmatch(r"\d{1,4}", text) or int(text) < 3:
        raise ValueError(f"SLUICE_DRAIN_S must be whole seconds from 3 to 9999, got {text!r}")
    return int(text)


def debug() -> bool:
    return _flag("SLUICE_DEBUG")


def https() -> bool:
    """Whether pages are reached over TLS only: through a proxy, or at the gateway's own door."""
    return behind_tls_proxy() or bool(os.environ.get("SLUICE_TLS_CERT"))


def behind_tls_proxy() -> bool:
    """On when a TLS-terminating proxy, which sets X-Forwarded-Proto itself, is the only way in."""
    return _flag("SLUICE_HTTPS")


def _list(name: str) -> list[str]:
    return [part.strip() for part in os.environ.get(name, "").split(",") if part.strip()]


def _flag(name: str) -> bool:
    value = os.environ.get(name, "").lower()
    if value not in {"", "0", "1", "off", "on", "false", "true"}:
        raise ValueError(f"{name} must be 0 or 1, got {value!r}")
    return value in {"1", "on", "true"}


def serving_require() -> None:
    """Fail closed: a process that answers requests or runs tasks has every secret and URL, or stops here."""
    secret_key()
    app_database_url()
    operator_database_url()
    redis_url()
    key_pepper()
    master_keys()
