"""TLS at the door and trusted proxies: what the gateway's server is told, and clear refusals."""

from pathlib import Path

import pytest

from config import environment
from devservices.snippets import ready_text
from devservices.stack import Stack
from devservices.state import UpError, UpSettings, up_settings
from tests.gateway.certificates import certificate_make

SECRETS = {"wire_secret": "wire", "secret_key": "django", "key_pepper": "00", "master_key": "11"}
ROLES = {role: f"postgresql://{role}" for role in ("owner", "app", "operator", "gateway")}


def _settings(state: Path, **variables: str) -> UpSettings:
    return up_settings({"SLUICE_STATE": str(state), **variables})


def _gateway_command(settings: UpSettings) -> list[str]:
    return list(Stack(settings, SECRETS, ROLES, "redis://x").gateway().command)


def test_without_settings_the_door_is_plain_and_no_proxy_is_believed(tmp_path: Path) -> None:
    settings = _settings(tmp_path)

    command = _gateway_command(settings)

    assert settings.base_url == "http://127.0.0.1:8000"
    assert "--no-proxy-headers" in command
    assert not {"--ssl-certfile", "--forwarded-allow-ips"} & set(command)


def test_with_a_certificate_everything_printed_and_probed_says_https(tmp_path: Path) -> None:
    certificate, key = certificate_make(tmp_path)
    settings = _settings(tmp_path, SLUICE_TLS_CERT=str(certificate), SLUICE_TLS_KEY=str(key))

    command = _gateway_command(settings)

    assert command[command.index("--ssl-certfile") + 1] == str(certificate)
    assert command[command.index("--ssl-keyfile") + 1] == str(key)
    assert settings.front_door.own_client_context() is not None
    seeded = {"tenants": [{"api_key": "k"}], "admin": {"username": "admin", "password": "p"}}
    text = ready_text(settings, seeded, "small")
    assert text.startswith("ready https://127.0.0.1:8000\n")
    assert "http://" not in text


def test_the_pages_know_that_they_are_reached_over_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICE_HTTPS", raising=False)
    monkeypatch.setenv("SLUICE_TLS_CERT", str(tmp_path / "certificate.pem"))
    spec = Stack(_settings(tmp_path), SECRETS, ROLES, "redis://x").gateway()

    assert spec.environment["SLUICE_TLS_CERT"] == str(tmp_path / "certificate.pem")
    assert environment.https()
    assert not environment.behind_tls_proxy()  # or any client's X-Forwarded-Proto would be believed


def test_trusted_proxies_reach_the_server(tmp_path: Path) -> None:
    command = _gateway_command(_settings(tmp_path, SLUICE_TRUSTED_PROXIES="10.0.0.5, 10.1.0.0/16,::1"))

    assert "--proxy-headers" in command
    assert command[command.index("--forwarded-allow-ips") + 1] == "10.0.0.5,10.1.0.0/16,::1"


@pytest.mark.parametrize("value", ["*", "proxy.example", "10.0.0.0/33", "10.0.0.5/16"])
def test_a_proxy_that_is_no_address_is_refused_by_name(tmp_path: Path, value: str) -> None:
    with pytest.raises(UpError, match="SLUICE_TRUSTED_PROXIES must be addresses or networks"):
        _settings(tmp_path, SLUICE_TRUSTED_PROXIES=value)


@pytest.mark.parametrize("name", ["SLUICE_TLS_CERT", "SLUICE_TLS_KEY"])
def test_half_a_pair_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UpError, match="belong together"):
        _settings(tmp_path, **{name: str(tmp_path / "x.pem")})


def test_what_cannot_be_read_or_used_is_one_line_that_holds_no_key(tmp_path: Path) -> None:
    certificate, key = certificate_make(tmp_path)
    other_folder, locked_folder = tmp_path / "other", tmp_path / "locked"
    other_folder.mkdir()
    locked_folder.mkdir()
    _, other_key = certificate_make(other_folder)
    _, locked_key = certificate_make(locked_folder, password="secret")
    refused = {
        (tmp_path / "none.pem", key): "SLUICE_TLS_CERT: cannot read",
        (certificate, tmp_path / "none.pem"): "SLUICE_TLS_KEY: cannot read",
        (key, key): "are not a PEM certificate",
        (certificate, certificate): "are not a PEM certificate",
        (certificate, other_key): "KEY_VALUES_MISMATCH",
        (certificate, locked_key): "unencrypted key",
    }
    for (cert, private), message in refused.items():
        with pytest.raises(UpError, match=message) as refusal:
            _settings(tmp_path, SLUICE_TLS_CERT=str(cert), SLUICE_TLS_KEY=str(private))
        assert len(str(refusal.value).splitlines()) == 1
        assert "PRIVATE" not in str(refusal.value)
