"""How clients reach the gateway: TLS at its own door, and the proxies whose word about a client is taken."""

import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


class FrontDoorError(ValueError):
    """What was chosen cannot work; the message names the variable and says what to do."""


@dataclass(frozen=True, slots=True)
class FrontDoor:
    """`certificate` and `key`: PEM files, or both None. Without trusted proxies no one is believed."""

    certificate: Path | None = None
    key: Path | None = None
    trusted_proxies: tuple[str, ...] = ()

    @property
    def scheme(self) -> str:
        return "https" if self.certificate else "http"

    def uvicorn_arguments(self) -> list[str]:
        arguments = ["--no-proxy-headers"]
        if self.trusted_proxies:
            arguments = ["--proxy-headers", "--forwarded-allow-ips", ",".join(self.trusted_proxies)]
        if self.certificate and self.key:
            arguments += ["--ssl-certfile", str(self.certificate), "--ssl-keyfile", str(self.key)]
        return arguments

    def own_client_context(self) -> ssl.SSLContext | None:
        """For our own look at the port on this machine: the certificate is made out to the name that others
        use, and an expired one must not keep the stack from starting."""
        if not self.certificate:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context


def front_door(environment: Mapping[str, str]) -> FrontDoor:
    """From SLUICE_TLS_CERT, SLUICE_TLS_KEY and SLUICE_TRUSTED_PROXIES. Raises FrontDoorError."""
    proxies = environment.get("SLUICE_TRUSTED_PROXIES", "")
    trusted = tuple(_network(part.strip()) for part in proxies.split(",") if part.strip())
    certificate, key = environment.get("SLUICE_TLS_CERT", ""), environment.get("SLUICE_TLS_KEY", "")
    if not certificate and not key:
        return FrontDoor(trusted_proxies=trusted)
    if not certificate or not key:
        raise FrontDoorError("SLUICE_TLS_CERT and SLUICE_TLS_KEY belong together: set both, or neither")
    pair = Path(certificate).resolve(), Path(key).resolve()
    _pair_check(*pair)
    return FrontDoor(*pair, trusted)


def _network(text: str) -> str:
    """`*` would let every client say who it is, so it is no address here."""
    try:
        return str(ipaddress.ip_network(text)) if "/" in text else str(ipaddress.ip_address(text))
    except ValueError:
        raise FrontDoorError(
            f"SLUICE_TRUSTED_PROXIES must be addresses or networks such as 10.0.0.5,10.1.0.0/16, not {text!r}"
        ) from None


def _pair_check(certificate: Path, key: Path) -> None:
    for variable, path in (("SLUICE_TLS_CERT", certificate), ("SLUICE_TLS_KEY", key)):
        try:
            path.open("rb").close()
        except OSError as error:
            raise FrontDoorError(f"{variable}: cannot read {path}: {error.strerror}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:  # a password that is given keeps OpenSSL from asking the terminal for one
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError) as error:
        reason = error.reason if isinstance(error, ssl.SSLError) else str(error)
        raise FrontDoorError(
            f"SLUICE_TLS_CERT and SLUICE_TLS_KEY: {certificate} and {key} are not a PEM certificate and its "
            f"unencrypted key: {reason}"
        ) from None
