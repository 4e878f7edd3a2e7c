"""Who may talk to a worker: the checks on the first message of a connection."""

import hmac

from gpuworker.wire.messages import PROTOCOL_VERSION, AnyMessage, Hello, Refusal

ROLES = ("gateway", "controller", "worker")


def hello_check(message: AnyMessage, secret: str) -> Hello | Refusal:
    """The greeting, or why it is refused."""
    if not isinstance(message, Hello):
        return Refusal(code="bad_role", message="the first message must be Hello")
    if message.version != PROTOCOL_VERSION:
        return Refusal(code="bad_version", message=f"this worker speaks version {PROTOCOL_VERSION}")
    if not hmac.compare_digest(message.secret.encode(), secret.encode()):
        return Refusal(code="bad_secret", message="SLUICE_WIRE_SECRET differs")
    if message.role not in ROLES or not message.incarnation:
        return Refusal(code="bad_role", message=f"a worker serves {', '.join(ROLES)}, by incarnation")
    return message
