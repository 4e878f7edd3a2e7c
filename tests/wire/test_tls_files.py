"""Certificates and the settings that name them: what is wrong is said, and names mean what they say."""

from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from django.core.management import CommandError, call_command

from devservices.wire_certificates import CertificateError, certificates_make
from gpuworker.wire.tls import TLS_SETTINGS, TlsError, may_be, names_of, tls_from


def test_settings_are_all_or_none_and_say_what_is_wrong(tmp_path: Path) -> None:
    path, other = certificates_make(tmp_path, ["worker/w0", "worker/w1"])
    good = dict(
        zip(TLS_SETTINGS, map(str, (path, path.with_suffix(".key"), tmp_path / "ca.pem")), strict=True)
    )
    assert tls_from({}) is None
    assert tls_from(good) is not None
    (tmp_path / "empty").touch()
    for name in TLS_SETTINGS:
        with pytest.raises(TlsError, match=f"{name} not set"):
            tls_from({**good, name: ""})
        for bad in ("missing", "empty"):
            with pytest.raises(TlsError, match="SLUICE_WIRE_TLS_"):
                tls_from({**good, name: str(tmp_path / bad)})
    with pytest.raises(TlsError, match="unencrypted key"):
        tls_from({**good, "SLUICE_WIRE_TLS_KEY": str(other.with_suffix(".key"))})


def test_keys_are_private_and_an_authority_stays(tmp_path: Path) -> None:
    (first,) = certificates_make(tmp_path, ["worker/w0"])
    authority = (tmp_path / "ca.pem").read_bytes()
    (any_gateway,) = certificates_make(tmp_path, ["gateway/*"])
    assert (tmp_path / "ca.pem").read_bytes() == authority
    assert (first.name, any_gateway.name) == ("worker-w0.pem", "gateway-any.pem")
    for key in tmp_path.glob("*.key"):
        assert key.stat().st_mode & 0o077 == 0
    assert len(list(tmp_path.glob("*.key"))) == 3


@pytest.mark.parametrize("bad", ["queen/w0", "worker", "worker/", "worker/a/b", "worker/a*", "../x"])
def test_names_that_nobody_has_are_refused(tmp_path: Path, bad: str) -> None:
    with pytest.raises(CertificateError, match="ROLE/ID"):
        certificates_make(tmp_path, [bad])
    assert not list(tmp_path.iterdir())


def test_the_command_makes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "tls"
    call_command("wire_certificates", "worker/w0", "gateway/*", out=out, days=3)
    paths = [Path(line) for line in capsys.readouterr().out.split()]
    assert paths == [out / "worker-w0.pem", out / "gateway-any.pem"]
    made = x509.load_pem_x509_certificate(paths[0].read_bytes())
    assert made.not_valid_after_utc - made.not_valid_before_utc < timedelta(days=3, hours=1)
    for arguments in (["queen/w0"], ["worker/w0", "--days", "0"], ["worker/w0", "--days", "9999999999"]):
        with pytest.raises(CommandError):
            call_command("wire_certificates", *arguments, "--out", str(out))


def test_a_certificate_without_names_is_nobodys() -> None:
    assert names_of(None) is None
    assert names_of({}) == ()
    names = (("DNS", "sluice://worker/w0"), ("URI", "https://worker/w1"), ("URI", "sluice://worker/w2"))
    assert names_of({"subjectAltName": names}) == ("worker/w2",)


def test_names_say_what_a_peer_may_be() -> None:
    assert may_be(None, "worker", "w0")
    assert may_be(("worker/w0",), "worker", "w0")
    assert may_be(("worker/*",), "worker", "w0")
    assert may_be(("gateway/g", "worker/w0"), "worker")
    assert not may_be((), "worker")
    assert not may_be(("worker/w0",), "worker", "w1")
    assert not may_be(("worker/w0",), "gateway", "w0")
    assert not may_be(("workers/w0",), "worker")
