"""Who may talk to a worker: the checks on the first message of a connection."""

import hmac

from gpuworker.wire.messages import PROTOCOL_VERSION, AnyMessage, Hello, Refusal
from gpuworker.wire.tls import may_be

ROLES = ("gateway", "controller", "worker")


def hello_check(
    message: AnyMessage,
    secret: str,
    incarnation: str,
    *,
    names: tuple[str, ...] | None = None,
    gateways: tuple[str, ...] = (),
) -> Hello | Refusal:
    """The greeting, or why it is refused. `incarnation` is the worker's own; `names` are the certificate's of
    who greets; `gateways` those that may come, any where none is named."""
    if not isinstance(message, Hello):
        return Refusal(code="bad_role", message="the first message must be Hello")
    if message.version != PROTOCOL_VERSION:
        return Refusal(code="bad_version", message=f"this worker speaks version {PROTOCOL_VERSION}")
    if not hmac.compare_digest(message.secret.encode(), secret.encode()):
        return Refusal(code="bad_secret", message="SLUICE_WIRE_SECRET differs")
    if message.role not in ROLES or not message.incarnation:
        return Refusal(code="bad_role", message=f"a worker serves {', '.join(ROLES)}, by incarnation")
    if not may_be(names, message.role, message.id):
        return Refusal(
            code="bad_certificate", message=f"the certificate is not {message.role}/{message.id}'s"
        )
    if gateways and message.role == "gateway" and message.id not in gateways:
        return Refusal(code="unknown_gateway", message=f"this worker does not serve {message.id}")
    if message.to not in ("", incarnation):  # else it would take the place of who means this one
        return Refusal(code="other_process", message="another process listens at the worker's address")
    return message
