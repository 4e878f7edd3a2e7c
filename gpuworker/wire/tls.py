"""Mutual TLS between processes: whose certificates count, and what a peer's certificate says it is.

Both ends show a certificate of the fleet's own authority. Its URI names (subjectAltName) say what its owner
may be: `sluice://worker/worker-0`, or `sluice://worker/*` for a role's every process. Addresses prove nothing
here, so host names are not compared. TLS is beside the shared secret, never in its place.
"""

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

TLS_SETTINGS = ("SLUICE_WIRE_TLS_CERT", "SLUICE_WIRE_TLS_KEY", "SLUICE_WIRE_TLS_CA")
SCHEME = "sluice://"
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")


class TlsError(ValueError):
    """The files cannot be used; the message names the setting."""


@dataclass(frozen=True, slots=True)
class WireTls:
    listening: ssl.SSLContext
    connecting: ssl.SSLContext


def tls_load(certificate: str, key: str, authority: str) -> WireTls | None:
    """From the PEM files that `TLS_SETTINGS` name; None where none is named. Raises TlsError."""
    given = dict(zip(TLS_SETTINGS, (certificate, key, authority), strict=True))
    if missing := [name for name, path in given.items() if not path]:
        if len(missing) == len(given):
            return None
        raise TlsError(f"{' and '.join(missing)} not set: TLS needs all of {', '.join(TLS_SETTINGS)}")
    return WireTls(
        _context(ssl.PROTOCOL_TLS_SERVER, certificate, key, authority),
        _context(ssl.PROTOCOL_TLS_CLIENT, certificate, key, authority),
    )


def tls_from(environment: Mapping[str, str]) -> WireTls | None:
    """As `tls_load`, by the settings' names."""
    return tls_load(*(environment.get(name, "") for name in TLS_SETTINGS))


def _context(protocol: int, certificate: str, key: str, authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # never asks on a terminal
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise TlsError(
            f"SLUICE_WIRE_TLS_CERT and _KEY must be a certificate and its unencrypted key: {reason}"
        ) from None
    try:
        context.load_verify_locations(authority)
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        raise TlsError(f"SLUICE_WIRE_TLS_CA must be the authority's certificates: {reason}") from None
    return context


def tls_reason(error: OSError) -> str:
    """Why a handshake failed, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return "it does not speak TLS" if error.reason in _NO_TLS else error.reason.lower().replace("_", " ")
    return str(error) or "closed in the handshake, as those do who do not speak TLS"


def names_of(certificate: Mapping[str, object] | None) -> tuple[str, ...] | None:
    """`role/id` of each URI name in a peer's verified certificate; None where there was no TLS."""
    if certificate is None:
        return None
    names = certificate.get("subjectAltName", ())
    assert isinstance(names, Iterable)
    return tuple(
        value.removeprefix(SCHEME) for kind, value in names if kind == "URI" and value.startswith(SCHEME)
    )


def may_be(names: tuple[str, ...] | None, role: str, name: str = "") -> bool:
    """Whether a peer with these names may be that process; without a `name`, any of the role."""
    if names is None:
        return True
    if not name:
        return any(held.startswith(f"{role}/") for held in names)
    return f"{role}/{name}" in names or f"{role}/*" in names
