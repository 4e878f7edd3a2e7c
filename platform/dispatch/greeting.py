"""Who may talk to a dispatcher: the checks on the first message of a connection, and its refusals' words."""

import hmac

from dispatch.lease import Lease
from gpuworker.wire.messages import PROTOCOL_VERSION, AnyMessage, Hello, Refusal
from gpuworker.wire.tls import may_be

ROLES = ("gateway", "worker", "controller", "dispatcher")


def hello_check(message: AnyMessage, secret: bytes, names: tuple[str, ...] | None) -> Hello | Refusal:
    """The greeting, or why it is refused. `names` are its certificate's."""
    if not isinstance(message, Hello):
        return Refusal(code="bad_role", message="the first message must be Hello")
    if message.version != PROTOCOL_VERSION:
        return Refusal(code="bad_version", message=f"this dispatcher speaks version {PROTOCOL_VERSION}")
    if not hmac.compare_digest(message.secret.encode(), secret):
        return Refusal(code="bad_secret", message="SLUICE_WIRE_SECRET differs")
    if message.role not in ROLES:
        return Refusal(code="bad_role", message=f"unknown role {message.role!r}")
    if not message.id or not message.incarnation:
        return Refusal(code="bad_role", message="every peer has a name and an incarnation")
    if not may_be(names, message.role, message.id):
        return Refusal(
            code="bad_certificate", message=f"the certificate is not {message.role}/{message.id}'s"
        )
    return message


def standby_refusal(lease: Lease | None) -> Refusal:
    """Of a dispatcher that serves nobody now, or is asked by another one."""
    if lease is None:
        return Refusal(code="standby", message="this dispatcher shares no lease: it was given one address")
    message = "another dispatcher is active" if lease.active_address else "no other dispatcher is active"
    return Refusal(code="standby", message=message, active=lease.active_address, term=lease.seen_term)
