"""Public ids of rows: UUIDv7 from the wall clock and the system's randomness. No Django here."""

import secrets
import time
from uuid import UUID

from policy.ids import uuid7


def uuid7_now() -> UUID:
    return uuid7(time.time_ns() // 1_000_000, secrets.randbits(74))
