"""What machine time is shared between: one tenant's requests of one class."""

from typing import NamedTuple

INTERACTIVE = "interactive"
BATCH = "batch"
BATCH_URGENT = "batch_urgent"  # batch whose deadline is near: served among interactive requests
CLASSES = (INTERACTIVE, BATCH)  # that a request may ask for, in order of precedence


class Flow(NamedTuple):
    """Fairness is between flows, so per tenant: however many keys or connections it uses."""

    tenant: str
    klass: str
