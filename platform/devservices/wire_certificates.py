"""An authority and certificates for the processes of a test or development fleet.

Not for production: there an organisation's own authority signs, and its key lies on no such machine.
"""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from devservices.paths import write_private

SCHEME: Final = "sluice://"
AUTHORITY: Final = "ca"
DAYS: Final = 30
AUTHORITY_DAYS: Final = 3_650
_NAME: Final = re.compile(r"(gateway|dispatcher|worker|controller)/(\*|[A-Za-z0-9][A-Za-z0-9._-]{0,62})")
_BEFORE: Final = timedelta(minutes=5)  # clocks differ


class CertificateError(Exception):
    """A certificate cannot be made as asked; the message is one line."""


def certificates_make(
    folder: Path, names: list[str], *, valid: timedelta = timedelta(days=DAYS)
) -> list[Path]:
    """A certificate and key for each of `names` (`worker/worker-0`, `worker/*`), as PEM files in `folder`.

    The authority there is made when it is not there yet. The result are the certificates' paths; a key lies
    beside each. Raises CertificateError, OSError.
    """
    for name in names:
        if not _NAME.fullmatch(name):
            raise CertificateError(f"a name is ROLE/ID, such as worker/worker-0 or worker/*, not {name!r}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority, authority_key = _authority(folder)
    return [_certificate(folder, name, authority, authority_key, valid) for name in names]


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    path, key_path = folder / f"{AUTHORITY}.pem", folder / f"{AUTHORITY}.key"
    if path.exists() and key_path.exists():
        key = load_pem_private_key(key_path.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return x509.load_pem_x509_certificate(path.read_bytes()), key
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject("sluice development authority")
    built = (
        _builder(subject, subject, key, timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(path, key_path, built, key)
    return built, key


def _certificate(
    folder: Path,
    name: str,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    valid: timedelta,
) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(SCHEME + name)])
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    built = (
        _builder(_subject(name), authority.subject, key, valid)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(issuer_key, critical=False)
        .add_extension(names, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    stem = name.replace("/", "-").replace("*", "any")
    path = folder / f"{stem}.pem"
    _write(path, folder / f"{stem}.key", built, key)
    return path


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, valid: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + valid) - _BEFORE)
        .not_valid_after(now + valid)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write(
    path: Path, key_path: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_private(key_path, pem.decode())
    write_private(path, certificate.public_bytes(Encoding.PEM).decode())
    path.chmod(0o644)  # a certificate is public
