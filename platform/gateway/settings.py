"""What one gateway process is told from outside."""

from dataclasses import dataclass, field
from pathlib import Path

from config import environment
from gateway.access.origin import origin_normal
from gateway.limits import Limits
from gpuworker.wire.tls import WireTls, tls_load


@dataclass(frozen=True, slots=True)
class Settings:
    gateway_id: str
    dispatch_address: str
    wire_secret: str = field(repr=False)
    key_pepper: bytes = field(repr=False)
    master_keys: tuple[bytes, ...] = field(repr=False)
    database_url: str = field(repr=False)
    redis_url: str = field(repr=False)
    weights: Path
    spool: Path
    tls: WireTls | None = field(default=None, repr=False)  # of connections to dispatchers and workers
    quota_url: str = field(default="", repr=False)  # where the quotas have a store of their own
    default_model: str = ""  # for requests that name none; empty: they are refused
    default_model_aliases: frozenset[str] = frozenset()  # names that mean it, where no model has them
    allowed_origins: frozenset[str] = frozenset()  # of browsers' sockets, beside the site's own
    limits: Limits = field(default_factory=Limits)


def settings_from_environment() -> Settings:
    """Raises MissingSetting, ValueError."""
    return Settings(
        gateway_id=environment.gateway_id(),
        limits=Limits(drain_s=environment.drain_s()),
        dispatch_address=environment.dispatch_address(),
        wire_secret=environment.wire_secret(),
        tls=tls_load(*environment.wire_tls_files()),
        key_pepper=environment.key_pepper(),
        master_keys=environment.master_keys(),
        database_url=environment.gateway_database_url(),
        redis_url=environment.redis_url(),
        quota_url=environment.quota_url(),
        weights=environment.weights_dir(),
        spool=environment.spool_dir(),
        default_model=environment.default_model(),
        default_model_aliases=environment.default_model_aliases(),
        allowed_origins=frozenset(map(origin_normal, environment.allowed_origins())),
    )
