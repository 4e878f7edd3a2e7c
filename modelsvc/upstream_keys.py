"""Keys of upstream servers at rest: sealed by the platform's master key, each for its own upstream."""

from collections.abc import Sequence
from uuid import UUID

from tenants.data_keys import SealBroken, master_key_id, open_, seal


class UpstreamKeyUnreadable(Exception):
    """It was sealed by a master key that is not there, altered, or belongs to another upstream."""

    code = "upstream_key_unreadable"


def upstream_key_seal(master_keys: Sequence[bytes], upstream_id: UUID, key: str) -> tuple[str, bytes]:
    """The id of the master key, which is the first, and what is stored."""
    primary = master_keys[0]
    return master_key_id(primary), seal(primary, key.encode(), _context(upstream_id))


def upstream_key_open(master_keys: Sequence[bytes], upstream_id: UUID, key_id: str, sealed: bytes) -> str:
    """Raises UpstreamKeyUnreadable."""
    master_key = next((key for key in master_keys if master_key_id(key) == key_id), None)
    if master_key is None:
        raise UpstreamKeyUnreadable(
            f"the key is sealed by master key {key_id}, which is not in SLUICE_MASTER_KEY"
        )
    try:
        return open_(master_key, sealed, _context(upstream_id)).decode()
    except SealBroken:
        raise UpstreamKeyUnreadable("the stored key was altered, or is another upstream's") from None


def _context(upstream_id: UUID) -> bytes:
    return b"sluice upstream key\0" + upstream_id.bytes
