"""Every setting a Sluice process reads from its environment, by name, in one place. No Django here.

`manage.py up` sets all of them for the processes it starts; production sets them itself.
"""

import os
from pathlib import Path


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
    return _required("SLUICE_DISPATCH", "dispatcher address, unix:/path or tcp://host:port")


def wire_secret() -> str:
    return _required("SLUICE_WIRE_SECRET", "shared secret of gateways, dispatcher, workers and controller")


def gateway_id() -> str:
    return os.environ.get("SLUICE_GATEWAY_ID", "gateway-0")


def key_pepper() -> bytes:
    """Secret under which API keys are hashed. Losing it makes every issued key useless."""
    return bytes.fromhex(_required("SLUICE_KEY_PEPPER", "hex secret under which API keys are hashed"))


def gateway_database_url() -> str:
    return _required("SLUICE_DB_GATEWAY", "PostgreSQL URL of the gateway's role")


def redis_url() -> str:
    return _required("REDIS_URL", "Valkey or Redis URL")
