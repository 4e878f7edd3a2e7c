"""What one gateway process is told from outside."""

from dataclasses import dataclass, field
from pathlib import Path

from config import environment
from gateway.limits import Limits


@dataclass(frozen=True, slots=True)
class Settings:
    gateway_id: str
    dispatch_address: str
    wire_secret: str
    key_pepper: bytes
    database_url: str
    weights: Path
    spool: Path
    limits: Limits = field(default_factory=Limits)


def settings_from_environment() -> Settings:
    """Raises MissingSetting."""
    return Settings(
        gateway_id=environment.gateway_id(),
        dispatch_address=environment.dispatch_address(),
        wire_secret=environment.wire_secret(),
        key_pepper=environment.key_pepper(),
        database_url=environment.gateway_database_url(),
        weights=environment.weights_dir(),
        spool=environment.spool_dir(),
    )
