"""What the console promises about the figures it shows. No Django here."""

STALE_AFTER_MS = 3_000  # six missed publications


class FleetUnavailable(Exception):
    """The state store could not be read; the message says what an operator can do."""
